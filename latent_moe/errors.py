"""Errors that carry one line for a person: what is wrong, and where."""


class LatentMoEError(Exception):
    """Something went wrong that the user should read about in one line."""


class InputError(LatentMoEError):
    """The input cannot be used. The command line prints the message and exits with 2."""


class AnswerNo(LatentMoEError):
    """The question was answered, and the answer is no. The command line exits with 1."""
