"""A server's arguments, read as vLLM reads them."""

from collections.abc import Sequence
from itertools import pairwise


def number_after(words: Sequence[str], option: str) -> int | None:
    """The number behind an option, as a word of its own or after "="; of several the last, None where there is none."""
    texts = [after for word, after in pairwise(words) if word == option]
    texts += [word.partition("=")[2] for word in words if word.startswith(f"{option}=")]
    return int(texts[-1]) if texts and texts[-1].isdecimal() else None
