"""Several candidates against one baseline: one table for each, since each is a comparison of two arms by itself."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from latent_moe.lab.results import Results, Warning
from latent_moe.lab.results.arms import candidates
from latent_moe.lab.results.comparison import Table, compare


def compare_each(results: Results, baseline: str | None = None, candidate: str | None = None) -> list[Table]:
    """The table of each candidate, or the one that is named; one table where `bench` wrote no more than one candidate.

    Raises InputError where it is open which arms to compare.
    """
    names = candidates(results, baseline, candidate)
    tables = [compare(results, baseline, name) for name in names]
    if len(tables) > 1:
        text = (
            f"{len(tables)} candidates against one baseline: each interval is a 95 % one by itself, so that with equal "
            "arms the chance of a verdict other than inconclusive somewhere grows with their number"
        )
        note = Warning("several_candidates", text)
        tables = [replace(table, warnings=[*table.warnings, note]) for table in tables]
    return tables


def as_dict(tables: list[Table]) -> dict[str, Any]:
    """For JSON: the first table's keys, with the rows and warnings of all; each row says whose it is."""
    answers = [table.as_dict() for table in tables]
    rows = [row for answer in answers for row in answer["rows"]]
    warnings = _once(warning for answer in answers for warning in answer["warnings"])
    rates = {arm: rate for answer in answers for arm, rate in answer["success_rates"].items()}
    together = {"rows": rows, "warnings": warnings, "success_rates": rates}
    return answers[0] | {"candidates": [table.candidate for table in tables if table.candidate]} | together


def _once(items: Iterable[dict]) -> list[dict]:
    found: list[dict] = []
    for item in items:
        if item not in found:
            found.append(item)
    return found
