"""A cost as a sum of named terms, each of which says how it is known."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

# From best known to least: a sum is as well known as its least known term.
KINDS = ("measured", "interpolated", "modelled")


@dataclass(frozen=True)
class Term:
    """One part of a cost.

    `us` is what the part adds to the whole; `hidden_us` is what runs under another part and adds nothing.
    `kind` is measured, interpolated or modelled. `fit_error` is the relative error expected of `us` (0.1: ten per
    cent), None where nothing says it.
    """

    name: str
    us: float
    kind: str = "modelled"
    fit_error: float | None = None
    hidden_us: float = 0.0


@dataclass(frozen=True)
class Cost:
    """A tail's cost at one T and tp: its terms in order of execution."""

    tail: str
    tokens: int
    tp: int
    terms: tuple[Term, ...]

    @property
    def total_us(self) -> float:
        """What the tail takes, hidden parts left out."""
        return sum(term.us for term in self.terms)

    @property
    def kind(self) -> str:
        """How well the total is known: as its least known term."""
        return least_known(term.kind for term in self.terms)

    @property
    def fit_error(self) -> float | None:
        """Relative error of the total: the terms' errors added in quadrature; None if no term states one."""
        known = [term.us * term.fit_error for term in self.terms if term.fit_error is not None]
        return math.hypot(*known) / self.total_us if known and self.total_us else None

    def us(self, name: str) -> float:
        """The time of the terms called `name`."""
        return sum(term.us for term in self.terms if term.name == name)


def least_known(kinds: Iterable[str]) -> str:
    """The worst of some kinds of knowledge."""
    return max(kinds, key=KINDS.index)
