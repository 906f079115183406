"""The other tails, one file each; `registry` holds all of them by name."""
