"""Errors that carry one line for a person: what is wrong, and where."""

from collections.abc import Iterable


class LatentMoEError(Exception):
    """Something went wrong that the user should read about in one line."""


class InputError(LatentMoEError):
    """The input cannot be used. The command line prints the message and exits with 2."""


class AnswerNo(LatentMoEError):
    """The question was answered, and the answer is no. The command line exits with 1."""


def unknown(what: str, name: object, known: Iterable[str]) -> InputError:
    """The error for a name that is not in a list: "unknown tail 'x' (there are: a, b)"."""
    return InputError(f"unknown {what} {str(name)!r} (there are: {', '.join(known) or 'none'})")
