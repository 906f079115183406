"""Which arm is the baseline and which the candidate."""

import math
from typing import Any

from latent_moe.errors import InputError
from latent_moe.lab.results import Results


def choose_arms(
    results: Results, baseline: str | None, candidate: str | None
) -> tuple[str | None, str | None]:
    """(baseline, candidate) by name, by the role that `bench` wrote, or by order of appearance of exactly two.

    (name, None) with a single arm. Raises InputError that names the arms there are where
    a name is unknown or the choice is open.
    """
    items: list[Any] = [*results.runs, *results.answers, *results.accuracies]
    names = list(dict.fromkeys(item.arm or "?" for item in items))
    for asked in (baseline, candidate):
        if asked is not None and asked not in names:
            raise InputError(f"no arm {asked!r} in these results (there are: {', '.join(names)})")
    if baseline is not None and baseline == candidate:
        raise InputError(f"{baseline!r} cannot be both baseline and candidate")
    left = baseline or _by_role(items, "baseline", candidate)
    right = candidate or _by_role(items, "candidate", left)
    return _fill(names, left, right)


def candidates(results: Results, baseline: str | None, candidate: str | None) -> list[str | None]:
    """The arms to judge, each against the one baseline: the named one, or all that `bench` wrote as candidates.

    [None] where that leaves at most one: `choose_arms` then decides.
    """
    if candidate is not None:
        return [candidate]
    items: list[Any] = [*sorted(results.runs, key=_started), *results.answers]
    named = {
        item.arm: None for item in items if item.role == "candidate" and item.arm not in (None, baseline)
    }
    return list(named) if len(named) > 1 else [None]


def _started(run) -> float:
    """Arms come in the order in which they were first started, which is the recipe's."""
    return math.inf if run.order is None else run.order


def _by_role(items: list[Any], role: str, taken: str | None) -> str | None:
    named = {item.arm for item in items if getattr(item, "role", None) == role} - {taken}
    return named.pop() if len(named) == 1 else None


def _fill(names: list[str], left: str | None, right: str | None) -> tuple[str | None, str | None]:
    """Complete the choice where it is not open."""
    rest = [name for name in names if name not in (left, right)]
    if left is None and right is None and len(names) <= 2:
        one, other = [*names, None, None][:2]
        return one, other
    if left is not None and right is not None:
        return left, right
    if len(rest) > 1:
        raise InputError(f"{len(names)} arms ({', '.join(names)}): say which with --baseline and --candidate")
    other = rest[0] if rest else None
    return (left, other) if left is not None else (other, right)
