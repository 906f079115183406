"""Tails beside the two of the change, one file a tail; `registry` names them all."""
