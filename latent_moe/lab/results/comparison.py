"""Runs of two arms into the table: one row per cell and metric with delta, 95 % interval and verdict."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from latent_moe.lab.results import (
    METRICS,
    PRIMARY,
    Results,
    Run,
    Warning,
    pairing,
    read_results,
    stats,
    validity,
)
from latent_moe.lab.results.arms import choose_arms
from latent_moe.lab.results.rounding import rounding_warnings
from latent_moe.lab.results.run import NEEDS_TWO_TOKENS

NOT_COMPARABLE = "not_comparable"


@dataclass(frozen=True)
class Row:
    """One cell and metric. Means are geometric over the runs; None is a number that does not exist.

    `ci95_pct` is [low, high] in percent, `interval` says how it was made, `reason` why a row is not comparable.
    `baseline_text` and `candidate_text` are the published digits where a value is a single printed number.
    """

    isl: int | None
    osl: int | None
    concurrency: int | None
    metric: str
    baseline: float | None
    candidate: float | None = None
    delta_pct: float | None = None
    ci95_pct: list[float] | None = None
    verdict: str | None = None
    reason: str | None = None
    pairs: int = 0
    interval: str | None = None
    baseline_text: str | None = None
    candidate_text: str | None = None


@dataclass
class Table:
    """The comparison of two arms, or the rows of one (`candidate` None)."""

    baseline: str | None
    candidate: str | None
    rows: list[Row] = field(default_factory=list)
    warnings: list[Warning] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    devices: list[str] = field(default_factory=list)
    success_rates: dict[str, float] = field(default_factory=dict)

    @property
    def comparable(self) -> bool:
        """False where a cell's primary metric could not be compared."""
        return not any(row.verdict == NOT_COMPARABLE for row in self.rows if row.metric == PRIMARY)

    def as_dict(self) -> dict[str, Any]:
        """For JSON: the contract's keys, then what explains them."""
        return {
            "baseline": self.baseline,
            "candidate": self.candidate,
            "primary_metric": PRIMARY,
            "kind": self.kinds,
            "device": self.devices,
            "success_rates": self.success_rates,
            "rows": [
                {"baseline_arm": self.baseline, "candidate_arm": self.candidate, **vars(row)}
                for row in self.rows
            ],
            "warnings": [vars(warning) for warning in self.warnings],
        }


def compare(results: Results, baseline: str | None = None, candidate: str | None = None) -> Table:
    """The table of two arms of `results`. Raises InputError where it is open which two (see `choose_arms`)."""
    left, right = choose_arms(results, baseline, candidate)
    chosen = [run for run in results.runs if run.arm in (left, right)]
    runs, copies = pairing.without_copies(_lend_lengths(chosen))
    table = Table(left, right, warnings=[*results.warnings, *copies])
    table.kinds = sorted({run.kind for run in runs})
    table.devices = sorted({run.device for run in runs if run.device})
    table.success_rates = _success_rates(runs)
    again = validity.repeated_prompts(runs)
    for one, other in _cells(runs, left, right):
        cell = _Cell(one, other, again)
        table.rows += cell.rows(two_arms=right is not None)
        table.warnings += [*cell.warnings, *cell.left_out()]
    table.warnings += rounding_warnings(table.rows)
    return table


def _success_rates(runs: list[Run]) -> dict[str, float]:
    """Share of the requests that succeeded, by arm, for arms whose client counted them."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for run in runs:
        if run.asked and run.completed is not None:
            counts[run.arm or "?"][0] += run.completed
            counts[run.arm or "?"][1] += run.asked
    return {arm: completed / asked for arm, (completed, asked) in counts.items()}


def recommend_from_runs(
    folder: str | Path, baseline: str | None = None, candidate: str | None = None, **goal
) -> dict[int, stats.Recommendation]:
    """{concurrency: Recommendation} for the primary metric from the runs in a folder so far; `goal` is passed on to
    `recommend_pairs`. Where a concurrency was run with several lengths, the one that needs most pairs speaks.
    """
    results = read_results([folder])
    left, right = choose_arms(results, baseline, candidate)
    runs, _ = pairing.without_copies([run for run in results.runs if run.arm in (left, right)])
    again = validity.repeated_prompts(runs)
    found: dict[int, stats.Recommendation] = {}
    for one, other in _cells(runs, left, right):
        if one and other and (concurrency := one[0].concurrency) is not None:
            both = [
                item for item in (found.get(concurrency), _recommend(_Cell(one, other, again), goal)) if item
            ]
            found[concurrency] = max(both, key=lambda item: item.planned_sd_pct or 0.0)
    return found


def _recommend(cell: "_Cell", goal: dict) -> stats.Recommendation:
    """No number of pairs mends a cell that a guard calls not comparable: its spread is not the spread of what is asked."""
    if reasons := cell.reasons(PRIMARY, two_arms=True):
        return stats.no_recommendation(
            f"not comparable ({'; '.join(reasons)}): more pairs do not mend that", **goal
        )
    ratios = [ratio for pair in cell.pairs if (ratio := pair.log_ratio(PRIMARY)) is not None]
    return stats.recommend_pairs(ratios, **goal)


def _lend_lengths(runs: list[Run]) -> list[Run]:
    """A run without one success measured no lengths: it takes those of the only cell at its concurrency, to be seen there."""
    cells: dict[int | None, set] = defaultdict(set)
    for run in runs:
        if run.known_cell:
            cells[run.concurrency].add(run.cell)
    return [_lend(run, cells[run.concurrency]) for run in runs]


def _lend(run: Run, cells: set) -> Run:
    if run.completed != 0 or run.known_cell or len(cells) != 1:
        return run
    isl, osl, _ = next(iter(cells))
    return replace(run, isl=isl, osl=osl)


def _cells(runs: list[Run], left: str | None, right: str | None) -> Iterator[tuple[list[Run], list[Run]]]:
    """(baseline runs, candidate runs) per cell; a run whose lengths or concurrency are unknown is a cell of its own."""
    sides: dict[tuple, tuple[list[Run], list[Run]]] = defaultdict(lambda: ([], []))
    for run in runs:
        key = run.cell if run.known_cell else (*run.cell, run.source)
        sides[key][0 if run.arm == left else 1].append(run)
    _join_by_concurrency(sides)
    yield from (
        sides[key] for key in sorted(sides, key=lambda key: tuple((item is None, item) for item in key))
    )


def _join_by_concurrency(sides: dict) -> None:
    """Put two one-sided cells of the same concurrency together, so that different lengths are said to be different."""
    for key in [key for key in sides if len(key) == 3 and not sides[key][1]]:
        others = [other for other in sides if len(other) == 3 and other[2] == key[2] and not sides[other][0]]
        if len(others) == 1:
            sides[key] = (sides[key][0], sides.pop(others[0])[1])


class _Cell:
    """The runs of both arms at one (isl, osl, concurrency)."""

    def __init__(self, one: list[Run], other: list[Run], again: dict[str, validity.Fault]):
        self.one, self.other = one, other
        self.pairs, self.warnings = pairing.pair_runs(one, other) if one and other else ([], [])
        self.unlike = [fault for runs in (one, other) for fault in validity.unlike_repeats(runs)]
        self.faults = list(dict.fromkeys(self._faults(again)))

    def _faults(self, again: dict[str, validity.Fault]) -> Iterator[validity.Fault]:
        for run in (*self.one, *self.other):
            yield from validity.run_faults(run)
            if run.source in again:
                yield again[run.source]
        for runs in (self.one, self.other):
            yield from filter(None, [validity.first_run_fault(runs)])
        yield from self.unlike
        for pair in self.pairs:
            for run in pair.candidate:
                yield from validity.pair_faults(pair.baseline[0], run)

    def rows(self, two_arms: bool) -> list[Row]:
        names = [name for name in METRICS if self._shown(name)]
        return [self._row(name, two_arms) for name in names]

    def _shown(self, metric: str) -> bool:
        """A metric no run has is left out, unless there is a reason to state for it."""
        present = any(metric in run.values for run in (*self.one, *self.other))
        return present or bool(self.faults) or self._one_token(metric)

    def _one_token(self, metric: str) -> bool:
        runs = (*self.one, *self.other)
        return metric in NEEDS_TWO_TOKENS and all(
            run.tokens_per_request and run.tokens_per_request[1] <= 1 for run in runs
        )

    def _row(self, metric: str, two_arms: bool) -> Row:
        run = (self.one or self.other)[0]
        one, other = self._sides()
        row = Row(
            *run.cell,
            metric,
            baseline=pairing.mean_value(one, metric),
            candidate=pairing.mean_value(other, metric),
            pairs=len(self.pairs),
            baseline_text=_text(one, metric),
            candidate_text=_text(other, metric),
        )
        reasons = self.reasons(metric, two_arms)
        if reasons:
            return replace(row, verdict=NOT_COMPARABLE, reason="; ".join(reasons))
        return self._judged(row) if two_arms else row

    def _sides(self) -> tuple[tuple[Run, ...], tuple[Run, ...]]:
        """The runs whose means are shown: the paired ones, so that a delta recomputes from them; none where repeats are not
        repeats of the same thing (a warm-up and the run after it): their mean would be the mean of nothing.
        """
        if self.unlike:
            return (), ()
        if not self.pairs:
            return tuple(self.one), tuple(self.other)
        return tuple(r for p in self.pairs for r in p.baseline), tuple(
            r for p in self.pairs for r in p.candidate
        )

    def reasons(self, metric: str, two_arms: bool) -> list[str]:
        """Why this metric of the cell is not comparable; empty where it is."""
        reasons = [fault.text for fault in self.faults]
        if self._one_token(metric):
            reasons.append("one token per request: no time between output tokens exists")
        if not two_arms or reasons:
            return reasons
        run = (self.one or self.other)[0]
        if not run.known_cell:
            return ["unknown lengths or concurrency: never pooled with other runs"]
        if not (self.one and self.other):
            return [f"no {'candidate' if self.one else 'baseline'} run in this cell"]
        if not self.pairs:
            return ["no pair has both arms"]
        if all(pair.log_ratio(metric) is None for pair in self.pairs):
            return [f"{metric} is missing in one arm"]
        return []

    def left_out(self) -> list[Warning]:
        """Pairs that a metric of the table leaves out, because a run of them lacks it."""
        found = []
        for metric in METRICS:
            lacking = [pair for pair in self.pairs if pair.log_ratio(metric) is None]
            if lacking and len(lacking) < len(self.pairs) and not self.faults:
                runs = (run for pair in lacking for run in (*pair.baseline, *pair.candidate))
                names = ", ".join(run.source for run in runs if metric not in run.values)
                text = f"{metric} is missing in {names}: {len(lacking)} of {len(self.pairs)} pairs are left out of it"
                found.append(Warning("missing_value", text))
        return found

    def _judged(self, row: Row) -> Row:
        ratios = [ratio for pair in self.pairs if (ratio := pair.log_ratio(row.metric)) is not None]
        interval = stats.paired_interval(ratios)
        return replace(
            row,
            delta_pct=interval.delta_pct,
            ci95_pct=interval.ends,
            verdict=stats.verdict(interval, METRICS[row.metric].sign),
            pairs=interval.pairs,
            interval=interval.method,
        )


def _text(runs: tuple[Run, ...], metric: str) -> str | None:
    return runs[0].printed.get(metric) if len(runs) == 1 else None
