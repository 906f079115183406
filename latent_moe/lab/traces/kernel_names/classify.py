"""Names to kinds and libraries, by the table in `rules`, after every name is brought into one spelling.

Full demangling is not needed to tell what a kernel is. Of an Itanium-mangled name the nested parts are read by their
lengths and written with `::`, template arguments open with `<`, and literals are dropped; the rest stays as it is.
A name cut short keeps what it has.
"""

import re
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from latent_moe.lab.traces.kernel_names.rules import RULES

COMPUTE_KINDS = ("gemm", "collective", "moe", "attention", "norm", "elementwise", "reduction", "copy")
_UNKNOWN = ("unknown", "unknown")
_ARGUMENTS = re.compile(r"[<(]")
# Collective types as libraries spell them; the generic kernel of RCCL serves all types and so claims none.
_COLLECTIVE_TYPES = (
    (r"all_?reduce|cross_device_reduce|quickreduce|(?:one|two)_?shot", "all_reduce"),
    (r"reduce_?scatter", "reduce_scatter"),
    (r"all_?gather", "all_gather"),
    (r"all_?to_?all", "all_to_all"),
    (r"send_?recv", "send_recv"),
    (r"broadcast", "broadcast"),
    (r"(?:kernel|gloo:)_?reduce(?!_?scatter)", "reduce"),
)


class Classes(NamedTuple):
    """Kinds and libraries, aligned with the names asked about."""

    kind: list[str]
    library: list[str]


def classify(names: Sequence[str]) -> Classes:
    """Kind (one of KINDS) and library (one of LIBRARIES) of each name.

    Meant for the unique names of a trace: some tens of microseconds a name. A name that no rule knows is
    ("unknown", "unknown"). Truncated, mangled and decorated (`.kd`, `[clone .kd]`) spellings give the same answer as
    the full name as long as the telling part is there.
    """
    found = [_classify(name) for name in names]
    return Classes([kind for kind, _ in found], [library for _, library in found])


@cache
def _classify(name: str) -> tuple[str, str]:
    text = plain(name)
    own = _ARGUMENTS.split(text, maxsplit=1)[0]
    for pattern, own_name, kind, library in _compiled():
        if pattern.search(own if own_name else text):
            return kind, library
    return _UNKNOWN


@cache
def _compiled() -> list[tuple[re.Pattern, bool, str, str]]:
    """(pattern, is the kernel's own name searched alone, kind, library)."""
    return [
        (
            re.compile(pattern.removeprefix("@").replace("~", r"[\w:]*?")),
            pattern.startswith("@"),
            kind,
            library,
        )
        for pattern, kind, library in RULES
    ]


def collective_type(name: str) -> str | None:
    """all_reduce, reduce_scatter, ... as far as the name says it; None where it does not (the generic kernel)."""
    if _classify(name)[0] != "collective":
        return None
    lowered = plain(name).lower()
    return next((kind for pattern, kind in _COLLECTIVE_TYPES if re.search(pattern, lowered)), None)


def shorten(name: str, length: int = 60) -> str:
    """A name to put on an axis: no arguments, no template lists, at most `length` characters."""
    text = re.split(r"[(<]", plain(name))[0].strip() or plain(name)
    return text if len(text) <= length else text[: length - 1] + "…"


_DECORATION = re.compile(r"(?:\s*\[clone [^\]]*\]|\s*\(\.kd\)|\.kd|\.\.\.|…)+$")
_RETURN = re.compile(r"^(?:void|static void) ")
_ANONYMOUS = re.compile(r"\(anonymous namespace\)::|\(\(anonymous|_GLOBAL__N_\d+(?:::)?")
_LITERAL = re.compile(r"L[a-z]n?\d+E")
_LENGTH = re.compile(r"\d+")


def plain(name: str) -> str:
    """The name in one spelling: no return type, no `.kd` or `[clone ...]`, nested names joined with `::`."""
    text = _DECORATION.sub("", name.strip())
    text = _RETURN.sub("", text)
    if text.startswith("_Z"):
        text = _readable(text)
    return _ANONYMOUS.sub("", text)


def _readable(mangled: str) -> str:
    text, out, at = _LITERAL.sub("_", mangled[2:]), [], 0
    nested = text.startswith("N")
    while match := _LENGTH.search(text, at):
        out.append(text[at : match.start()])
        begin, size = match.end(), int(match.group())
        part = text[begin : begin + size]
        at = begin + len(part)
        out.append("::" + part)
        # An I after a name opens its template arguments; a name that is not nested ends there.
        if text[at : at + 1] == "I":
            out.append("<")
        elif not nested and len(out) == 2:
            out.append("(")
    out.append(text[at:])
    return "".join(out).replace("N::", "", 1).removeprefix("::")
