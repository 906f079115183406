"""Runs of two arms into the table: one row per cell and metric with delta, 95 % interval and verdict.

Several candidates against one baseline give one table each, since each is a comparison of two arms by itself.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from latent_moe.errors import InputError, unknown
from latent_moe.lab.results import stats, validity
from latent_moe.lab.results.read import Results, read_results
from latent_moe.lab.results.run import METRICS, NEEDS_TWO_TOKENS, PRIMARY, Note, Run

NOT_COMPARABLE = "not_comparable"
MARGIN_PCT = 1.0


@dataclass(frozen=True)
class Row:
    """One cell and metric. Means are geometric over the runs; None is a number that does not exist.

    `ci95_pct` is [low, high] in percent, `interval` says how it was made, `reason` why a row is not comparable.
    `baseline_text` and `candidate_text` are the published digits where a value is a single printed number. `request_rate`
    is the load of a cell whose client had no limit of concurrency. One metric decides (PRIMARY); the others are `exploratory`:
    their verdicts are not corrected for their number. `equivalent` and `sign_flip_p` as in `stats`.
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
    request_rate: str | None = None
    exploratory: bool = False
    equivalent: bool | None = None
    sign_flip_p: float | None = None
    baseline_text: str | None = None
    candidate_text: str | None = None


@dataclass
class Table:
    """The comparison of two arms, or the rows of one (`candidate` None)."""

    baseline: str | None
    candidate: str | None
    rows: list[Row] = field(default_factory=list)
    warnings: list[Note] = field(default_factory=list)
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
            "warnings": [vars(note) for note in self.warnings],
        }


def compare_each(
    results: Results,
    baseline: str | None = None,
    candidate: str | None = None,
    margin_pct: float = MARGIN_PCT,
) -> list[Table]:
    """The table of each candidate, or the one that is named; one table where `bench` wrote no more than one candidate.

    Raises InputError where it is open which arms to compare.
    """
    names = candidates(results, baseline, candidate)
    tables = [compare(results, baseline, name, margin_pct) for name in names]
    if len(tables) > 1:
        text = (
            f"{len(tables)} candidates against one baseline: each interval is a 95 % one by itself, so that with equal "
            "arms the chance of a verdict other than inconclusive somewhere grows with their number"
        )
        note = Note("several_candidates", text)
        tables = [replace(table, warnings=[*table.warnings, note]) for table in tables]
    return tables


def tables_as_dict(tables: list[Table]) -> dict[str, Any]:
    """For JSON: the first table's keys, with the rows and warnings of all; each row says whose it is."""
    answers = [table.as_dict() for table in tables]
    rows = [row for answer in answers for row in answer["rows"]]
    warnings = _once(warning for answer in answers for warning in answer["warnings"])
    rates = {arm: rate for answer in answers for arm, rate in answer["success_rates"].items()}
    together = {"rows": rows, "warnings": warnings, "success_rates": rates}
    return answers[0] | {"candidates": [table.candidate for table in tables if table.candidate]} | together


def _once(items: Iterable[dict]) -> list[dict]:
    kept: list[dict] = []
    for item in items:
        if item not in kept:
            kept.append(item)
    return kept


def compare(
    results: Results,
    baseline: str | None = None,
    candidate: str | None = None,
    margin_pct: float = MARGIN_PCT,
) -> Table:
    """The table of two arms of `results`. Raises InputError where it is open which two (see `choose_arms`)."""
    left, right = choose_arms(results, baseline, candidate)
    runs, cells, copies = cells_of(results, left, right, margin_pct)
    table = Table(left, right, warnings=[*results.warnings, *copies])
    table.kinds = sorted({run.kind for run in runs})
    table.devices = sorted({run.device for run in runs if run.device})
    table.success_rates = _success_rates(runs)
    for cell in cells:
        table.rows += cell.rows(two_arms=right is not None)
        table.warnings += [*cell.notes, *cell.said_of_pairs(), *cell.lacking()]
    table.warnings += rounding_notes(table.rows)
    return table


def cells_of(
    results: Results, left: str | None, right: str | None, margin_pct: float = MARGIN_PCT
) -> tuple[list[Run], list["Cell"], list[Note]]:
    """(the runs of two arms, their cells by size, notes on runs that were read twice)."""
    chosen = [run for run in results.runs if run.arm in (left, right)]
    runs, copies = validity.without_copies(_one_length_each(_lend_lengths(chosen)))
    again = validity.repeated_prompts(runs)
    return runs, [Cell(*sides, again, margin_pct) for sides in _sides_by_cell(runs, left)], copies


def choose_arms(
    results: Results, baseline: str | None, candidate: str | None
) -> tuple[str | None, str | None]:
    """(baseline, candidate) by name, by the role that `bench` wrote, or by order of appearance of exactly two.

    (name, None) with a single arm. Raises InputError that names the arms there are where
    a name is unknown or the choice is open.
    """
    # Accuracies pasted beside a table carry no arm of their own: they name arms only where nothing else does.
    items: list[Any] = [*results.runs, *results.answers] or list(results.accuracies)
    names = list(dict.fromkeys(item.arm or "?" for item in items))
    for asked in (baseline, candidate):
        if asked is not None and asked not in names:
            raise unknown("arm", asked, names)
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
    roles = {item.role for item in items}
    named = {
        item.arm: None
        for item in items
        # Where nothing was written by `bench`, every arm beside the named baseline is a candidate.
        if (item.role == "candidate" or (baseline and roles == {None})) and item.arm not in (None, baseline)
    }
    return list(named) if len(named) > 1 else [None]


def _started(run) -> float:
    """Arms come in the order in which they were first started, which is the recipe's."""
    return math.inf if run.order is None else run.order


def _by_role(items: list[Any], role: str, taken: str | None) -> str | None:
    named = {item.arm for item in items if getattr(item, "role", None) == role} - {taken}
    if role == "baseline" and taken is None and len(named) > 1:
        arms = ", ".join(sorted(str(name) for name in named))
        raise InputError(
            f"{len(named)} arms say that they are the baseline ({arms}): say which with --baseline"
        )
    return named.pop() if len(named) == 1 else None


def _fill(names: list[str], left: str | None, right: str | None) -> tuple[str | None, str | None]:
    """Complete the choice where it is not open."""
    rest = [name for name in names if name not in (left, right)]
    if left is None and right is None and len(names) <= 2:
        first, second = [*names, None, None][:2]
        return first, second
    if left is not None and right is not None:
        return left, right
    if len(rest) > 1:
        raise InputError(f"{len(names)} arms ({', '.join(names)}): say which with --baseline and --candidate")
    other = rest[0] if rest else None
    return (left, other) if left is not None else (other, right)


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
    _, cells, _ = cells_of(results, *choose_arms(results, baseline, candidate))
    advice: dict[int, stats.Recommendation] = {}
    for cell in cells:
        concurrency = cell.concurrency if cell.baseline and cell.candidate else None
        if concurrency is not None:
            both = [item for item in (advice.get(concurrency), _recommend(cell, goal)) if item]
            advice[concurrency] = max(both, key=lambda item: item.planned_sd_pct or 0.0)
    return advice


def _recommend(cell: "Cell", goal: dict) -> stats.Recommendation:
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


def _one_length_each(runs: list[Run]) -> list[Run]:
    """Measured lengths that rounding set apart (8191 and 8192 tokens) become the first of them, so that they are one cell."""
    return [
        replace(run, isl=_first_like(runs, run, "isl"), osl=_first_like(runs, run, "osl")) for run in runs
    ]


def _first_like(runs: list[Run], run: Run, side: str) -> int | None:
    length = getattr(run, side)
    return next((getattr(o, side) for o in runs if validity.same_length(getattr(o, side), length)), length)


def _sides_by_cell(runs: list[Run], left: str | None) -> Iterator[tuple[list[Run], list[Run]]]:
    """(baseline runs, candidate runs) per cell; a run whose lengths or concurrency are unknown is a cell of its own."""
    sides: dict[tuple, tuple[list[Run], list[Run]]] = defaultdict(lambda: ([], []))
    for run in runs:
        load = None if run.load is None else float(run.load)
        key = (*run.cell, load) if run.known_cell else (*run.cell, load, run.source)
        sides[key][0 if run.arm == left else 1].append(run)
    _join_by_concurrency(sides)
    yield from (
        sides[key] for key in sorted(sides, key=lambda key: tuple((item is None, item) for item in key))
    )


def _join_by_concurrency(sides: dict) -> None:
    """Put two one-sided cells of the same concurrency together, so that different lengths are said to be different."""
    for key in [key for key in sides if len(key) == 4 and not sides[key][1]]:
        others = [
            other for other in sides if len(other) == 4 and other[2:] == key[2:] and not sides[other][0]
        ]
        if len(others) == 1:
            sides[key] = (sides[key][0], sides.pop(others[0])[1])


def _run_faults(runs: Iterable[Run], again: dict[str, validity.Fault]) -> Iterator[validity.Fault]:
    for run in runs:
        yield from validity.run_faults(run)
        if run.source in again:
            yield again[run.source]


def _arm_faults(runs: list[Run]) -> list[validity.Fault]:
    first = validity.first_run_fault(runs)
    return [*([first] if first else []), *validity.unlike_repeats(runs)]


class Cell:
    """The runs of both arms at one (isl, osl, concurrency), with every reason against comparing them.

    `faults` are those of runs and pairs; `baseline_faults` those of the baseline's runs by themselves.
    """

    def __init__(
        self,
        baseline: list[Run],
        candidate: list[Run],
        again: dict[str, validity.Fault],
        margin_pct: float = MARGIN_PCT,
    ):
        self.baseline, self.candidate, self.margin_pct = baseline, candidate, margin_pct
        self.pairs, self.notes = (
            validity.pair_runs(baseline, candidate) if baseline and candidate else ([], [])
        )
        self.unlike = [fault for runs in (baseline, candidate) for fault in validity.unlike_repeats(runs)]
        self.baseline_faults = [*_run_faults(baseline, again), *_arm_faults(baseline)]
        self.faults = list(dict.fromkeys(self._faults(again)))

    @property
    def concurrency(self) -> int | None:
        """Requests in flight, None where the runs do not say."""
        return (self.baseline or self.candidate)[0].concurrency

    def _faults(self, again: dict[str, validity.Fault]) -> Iterator[validity.Fault]:
        yield from _run_faults([*self.baseline, *self.candidate], again)
        for runs in (self.baseline, self.candidate):
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
        present = any(metric in run.values for run in (*self.baseline, *self.candidate))
        return present or bool(self.faults) or self._one_token(metric)

    def _one_token(self, metric: str) -> bool:
        runs = (*self.baseline, *self.candidate)
        return metric in NEEDS_TWO_TOKENS and all(
            run.tokens_per_request and run.tokens_per_request[1] <= 1 for run in runs
        )

    def _row(self, metric: str, two_arms: bool) -> Row:
        run = (self.baseline or self.candidate)[0]
        baseline, candidate = self.sides()
        row = Row(
            *run.cell,
            metric,
            baseline=validity.mean_value(baseline, metric),
            candidate=validity.mean_value(candidate, metric),
            pairs=len(self.pairs),
            request_rate=run.load,
            baseline_text=_text(baseline, metric),
            candidate_text=_text(candidate, metric),
        )
        reasons = self.reasons(metric, two_arms)
        if reasons:
            return replace(row, verdict=NOT_COMPARABLE, reason="; ".join(reasons))
        return self._judged(row) if two_arms else row

    def sides(self) -> tuple[tuple[Run, ...], tuple[Run, ...]]:
        """The runs whose means are shown: the paired ones, so that a delta recomputes from them; none where repeats are not
        repeats of the same thing (a warm-up and the run after it): their mean would be the mean of nothing.
        """
        if self.unlike:
            return (), ()
        if not self.pairs:
            return tuple(self.baseline), tuple(self.candidate)
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
        run = (self.baseline or self.candidate)[0]
        if not run.known_cell:
            return ["unknown lengths or concurrency: never pooled with other runs"]
        if not (self.baseline and self.candidate):
            return [f"no {'candidate' if self.baseline else 'baseline'} run in this cell"]
        if not self.pairs:
            return ["no pair has both arms"]
        if all(pair.log_ratio(metric) is None for pair in self.pairs):
            return [f"{metric} is missing in one arm"]
        return []

    def said_of_pairs(self) -> list[Note]:
        """What the reader must know of pairs that are compared, each kind once."""
        notes = [n for pair in self.pairs for n in validity.pair_notes(pair.baseline[0], pair.candidate[0])]
        return list({note.code: note for note in reversed(notes)}.values())[::-1]

    def lacking(self) -> list[Note]:
        """Pairs that a metric of the table leaves out, because a run of them lacks it."""
        notes = []
        for metric in METRICS:
            lacking = [pair for pair in self.pairs if pair.log_ratio(metric) is None]
            if lacking and len(lacking) < len(self.pairs) and not self.faults:
                runs = (run for pair in lacking for run in (*pair.baseline, *pair.candidate))
                names = ", ".join(run.source for run in runs if metric not in run.values)
                text = f"{metric} is missing in {names}: {len(lacking)} of {len(self.pairs)} pairs are left out of it"
                notes.append(Note("missing_value", text))
        return notes

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
            exploratory=row.metric != PRIMARY,
            equivalent=stats.equivalent(ratios, self.margin_pct),
            sign_flip_p=stats.sign_flip_p(ratios),
        )


def _text(runs: tuple[Run, ...], metric: str) -> str | None:
    return runs[0].printed.get(metric) if len(runs) == 1 else None


# How far a delta of printed numbers can be trusted: half a unit of the last decimal on either side.
_WORTH_SAYING_PP = 0.05


def resolution_pp(baseline_text: str, candidate_text: str) -> float:
    """Percentage points by which the delta of two printed numbers may be off through rounding alone."""
    return sum(50 * 10.0 ** -_decimals(text) / abs(float(text)) for text in (baseline_text, candidate_text))


def _decimals(text: str) -> int:
    return len(text.partition(".")[2]) if "e" not in text.lower() else 0


def rounding_notes(rows: list[Row]) -> list[Note]:
    """One note per metric whose deltas suffer from the printed decimals; names a better source where there is one."""
    coarse: dict[str, list[tuple[float, Row]]] = defaultdict(list)
    for row in rows:
        if row.delta_pct is None or not row.baseline_text or not row.candidate_text:
            continue
        known_to = resolution_pp(row.baseline_text, row.candidate_text)
        if known_to > _WORTH_SAYING_PP:
            coarse[row.metric].append((known_to, row))
    return [_rounding_note(metric, rounded, rows) for metric, rounded in coarse.items()]


def _rounding_note(metric: str, rounded: list[tuple[float, Row]], rows: list[Row]) -> Note:
    worst = max(known_to for known_to, _ in rounded)
    decimals = max(_decimals(row.baseline_text or "") for _, row in rounded)
    text = f"{metric} is printed with {decimals} decimals: its deltas are rounded and known to {worst:.2f} points only"
    cells = {(row.isl, row.osl, row.concurrency) for _, row in rounded}
    exact = [row for row in rows if row.metric == "output_tok_per_s" and row.delta_pct is not None]
    better = [f"{row.delta_pct:+.2f} %" for row in exact if (row.isl, row.osl, row.concurrency) in cells]
    if metric == "req_per_s" and better:
        text += f"; output_tok_per_s, the same rate times the output length, gives {', '.join(better)}"
    return Note("rounded_values", text)
