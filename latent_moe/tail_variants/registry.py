"""The tails by name. A new tail is one file in this folder that declares its TAIL, and one line in NAMES.

T tokens. Names need no torch; a tail's file, and torch with it, is imported when the tail is looked up.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module

from latent_moe.errors import unknown
from latent_moe.tail_variants.declaration import Tail

# In the order in which tables and plots show them.
NAMES = (
    "replicated",
    "column_parallel",
    "overlap",
    "token_parallel",
    "pipelined",
    "fused",
    "joint",
    "row_parallel",
    "early_weights",
    "one_launch",
)
# Not a tail: at each T the one that a chooser names.
AUTO = "auto"
ASKABLE = (*NAMES, AUTO)
DEFAULT = "column_parallel"


class _Tails(Mapping[str, Tail]):
    """Name -> Tail, in the order of NAMES."""

    def __getitem__(self, name: str) -> Tail:
        if name not in NAMES:
            raise KeyError(name)
        return _declared(name)

    def __iter__(self) -> Iterator[str]:
        return iter(NAMES)

    def __len__(self) -> int:
        return len(NAMES)


TAILS = _Tails()


def known_tail(name: str) -> Tail:
    """The tail called `name`. Raises InputError that names the tails there are."""
    check_name(name, NAMES)
    return TAILS[name]


def check_name(name: object, known: tuple[str, ...] = ASKABLE) -> None:
    """Raise InputError unless `name` is a tail's, or "auto"."""
    if name not in known:
        raise unknown("tail", name, known)


@cache
def _declared(name: str) -> Tail:
    if name in _OF_THE_CHANGE:
        function = getattr(import_module("latent_moe.tails"), name)
        return Tail(name, function, *_OF_THE_CHANGE[name], traceable=True)
    return import_module(f"latent_moe.tail_variants.{name}").TAIL


# tails.py holds the change and nothing else: its two functions are declared here, rows and summary.
_OF_THE_CHANGE = {
    "replicated": ("all", "every rank does the whole up-projection"),
    "column_parallel": ("own", "each rank its columns; the all-reduce stitches"),
}
