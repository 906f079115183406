"""Two recordings side by side, without being fooled.

Arms are matched by the kind of their kernels: another tile size is another kernel name, so names have nothing in common.
Per call, both arms' means are compared kind by kind. Per step, the sum of durations and the union of intervals
(busy) are compared, each with itself; a step is what the recording marks as one, else the recordings are taken to hold
the same number of them when every kind that both have was called equally often. Where it was not, records may be
missing, and nothing is said about steps or totals, unless both mark their steps and each ran the same kernels in every
one: then the arms differ by design. All times are nanoseconds on the device.
"""

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from latent_moe.lab.traces import metrics
from latent_moe.lab.traces.collectives import Collectives, collectives
from latent_moe.lab.traces.steps import MarkedSteps, in_steps, marked_steps, marks
from latent_moe.lab.traces.table import Coded, Trace, TraceNote, group_codes

SAME_WITHIN = 0.02
# Waiting beyond this share of the kernel time is no property of the arm.
LATE_SHARE = 0.1
# Counts that differ by at most this share are one call more or less, not lost records.
NEARLY_EQUAL = 0.02
# A long call that the other arm has too, within this ratio, belongs to the work.
ALIKE = 2
# One call of so many times its kind's next longest, with this share of the whole time, is no property of the arm either.
LONG_TIMES, LONG_SHARE = 5, 0.05


@dataclass(frozen=True)
class RecordingFigures:
    """One side's figures; sums are over all devices, `steps` is None where the recording marks none."""

    files: list[str]
    devices: int
    steps: MarkedSteps | None
    calls: dict[str, int]
    total_ns: int
    busy_ns: int | None
    mean_ns: dict[str, float]
    median_ns: dict[str, float]
    longest_ns: dict[str, list[int]]
    untimed_calls: int
    collectives: Collectives
    partial: bool
    ranks: dict[str, dict[str, int | None]] = field(default_factory=dict)
    by_work: dict[str, dict[str, tuple[int, float]]] = field(default_factory=dict)
    carried_by: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Comparison:
    """`verdict` is "faster", "slower", "same" (within `same_within`) or "not_comparable"; `reasons` say why.

    Speed-ups are baseline over candidate: above 1 the candidate is faster. None: nothing can be said.
    """

    verdict: str
    basis: str
    reasons: list[str]
    per_call: dict[str, dict[str, float | None]]
    per_step: dict[str, float | None]
    baseline: RecordingFigures
    candidate: RecordingFigures
    warnings: list[TraceNote]

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return asdict(self)


def compare(
    baseline: Trace, candidate: Trace, kind: str | None = None, same_within: float = SAME_WITHIN
) -> Comparison:
    """Compare two recordings.

    Args:
        baseline, candidate: what `read` returned.
        kind: judge by this kind's calls alone; by default the time per step decides, or GEMM calls without steps.
        same_within: relative difference below which the verdict is "same".
    """
    arms = arm(in_steps(baseline)), arm(in_steps(candidate))
    warnings = [
        *_told("baseline", baseline),
        *_told("candidate", candidate),
        *_counts(*arms),
        *_missing(*arms),
        *_long(*arms),
    ]
    per_call, per_step, late = _per_call(*arms), _per_step(*arms), _late(*arms)
    whole, same = _overlap_of_files(*arms)
    reasons = [] if same else _obstacles(*arms, kind, part=whole)
    # What a single call outweighs says nothing about the arm; calls of another kind can still be compared.
    reasons += [] if same else [w.message for w in _long(*arms, kind)]
    known_late = any(w.code == "late_ranks" for w in late)
    basis, speedup = _basis(per_call, per_step, kind, known_late)
    if same:
        basis, speedup = "one recording against itself", 1.0
    warnings += [*late, *_few_carry(*arms)]
    reasons += [] if speedup else [f"no {kind or 'gemm'} calls with a time in both"]
    verdict = "not_comparable" if reasons else _verdict(speedup, same_within)
    reasons = reasons or [
        _because(basis, speedup),
        *(w.message for w in warnings if w.code == "unequal_calls" and not _comparable_steps(*arms)),
    ]
    return Comparison(verdict, basis, reasons, per_call, per_step, *arms, warnings)


def rows_by(baseline: Trace, candidate: Trace, by: str) -> list[dict[str, Any]]:
    """Rows by "kind", "name" or "shape", the largest of the baseline first: calls, totals and medians of both arms, and
    the speed-up of the medians; None for what an arm lacks."""
    sides = [
        {row.key: row for row in metrics.group(t.kernels, metrics.shapes(t.kernels) if by == "shape" else by)}
        for t in (baseline, candidate)
    ]
    rows = []
    for key in dict.fromkeys([*sides[0], *sides[1]]):
        before, after = (side.get(key) for side in sides)
        row: dict[str, Any] = {"key": key}
        for name, figures in (("baseline", before), ("candidate", after)):
            row |= {f"{name}_calls": figures.calls if figures else 0}
            row |= {f"{name}_total_ns": figures.total_ns if figures else 0}
            row |= {f"{name}_median_ns": figures.median_ns if figures else None}
        rows.append({**row, "speedup": _ratio(row["baseline_median_ns"], row["candidate_median_ns"])})
    return rows


def arm(trace: Trace) -> RecordingFigures:
    """The figures of one recording."""
    kernels = trace.kernels
    rows = [row for row in metrics.group(kernels, "kind") if row.calls]
    return RecordingFigures(
        files=trace.files,
        devices=len(np.unique(group_codes(kernels, metrics.DEVICE))),
        steps=marked_steps(trace),
        calls={row.key: row.calls for row in rows},
        total_ns=metrics.total_ns(kernels),
        busy_ns=metrics.busy_ns(kernels),
        mean_ns={row.key: row.mean_ns for row in rows if row.mean_ns is not None},
        median_ns={row.key: row.median_ns for row in rows if row.median_ns is not None},
        longest_ns={
            row.key: [row.max_ns, row.second_ns]
            for row in rows
            if row.max_ns is not None and row.second_ns is not None
        },
        untimed_calls=len(kernels) - metrics.calls(kernels),
        collectives=collectives(kernels),
        partial=trace.partial,
        ranks=_ranks(kernels),
        by_work=_by_work(kernels),
        carried_by={row.key: row.carried_by for row in rows if row.carried_by},
    )


def _by_work(kernels) -> dict[str, dict[str, tuple[int, float]]]:
    """kind -> what its calls worked on (tokens as the workload marks them, else a GEMM's sizes) -> (calls, median ns)."""
    region, sizes, kind = kernels["region"], metrics.shapes(kernels), kernels["kind"]
    tokens = region.map(
        [f"T={known['T']}" if "T" in (known := marks(name)) else None for name in region.values]
    )
    work = tokens if tokens.values else sizes
    if not work.values:
        return {}
    wide = len(work.values)
    pairs = np.where(
        (work.codes >= 0) & (kind.codes >= 0), kind.codes.astype(np.int64) * wide + work.codes, -1
    )
    texts = [f"{one}\n{other}" for one in kind.values for other in work.values]
    found: dict[str, dict[str, tuple[int, float]]] = {}
    for row in metrics.group(kernels, Coded(pairs, texts)):
        if row.median_ns is not None and row.calls and "\n" in row.key:
            name, place = row.key.split("\n")
            found.setdefault(name, {})[place] = row.calls, row.median_ns
    return found


def _ranks(kernels) -> dict[str, dict[str, int | None]]:
    names = metrics.ranks(kernels)
    found: dict[str, dict[str, int | None]] = {}
    for row in metrics.group(kernels, names):
        mine = kernels.take(names.codes == names.values.index(row.key))
        found[row.key] = {"total_ns": row.total_ns, "busy_ns": metrics.busy_ns(mine)}
    return dict(sorted(found.items()))


def _told(name: str, trace: Trace) -> list[TraceNote]:
    return [TraceNote(w.code, f"{name}: {w.message}") for w in trace.warnings]


def _unequal(baseline: RecordingFigures, candidate: RecordingFigures) -> list[str]:
    """Kinds that both arms have, called unequally often."""
    shared = [kind for kind in baseline.calls if kind in candidate.calls]
    return [kind for kind in shared if not _nearly(baseline.calls[kind], candidate.calls[kind])]


def _nearly(count: int, other: int) -> bool:
    return abs(count - other) <= NEARLY_EQUAL * max(count, other)


def _overlap_of_files(baseline: RecordingFigures, candidate: RecordingFigures) -> tuple[bool, bool]:
    """(does one side hold all files of the other, do both hold the same calls of the same files)."""
    one, other = set(baseline.files), set(candidate.files)
    if not one or not other:
        return False, False
    part = one <= other or other <= one
    sums = [(figures.calls, figures.total_ns, figures.devices) for figures in (baseline, candidate)]
    return part, one == other and sums[0] == sums[1]


def _few_carry(baseline: RecordingFigures, candidate: RecordingFigures) -> list[TraceNote]:
    """Kinds whose mean few calls carry: their medians say more."""
    told = [
        f"{name}'s mean {kind} call ({count} of {figures.calls[kind]} calls hold most of the time)"
        for name, figures in _named(baseline, candidate)
        for kind, count in figures.carried_by.items()
    ]
    return (
        [TraceNote("few_calls_carry_mean", f"see medians, few calls carry {'; '.join(told)}")] if told else []
    )


def _counts(baseline: RecordingFigures, candidate: RecordingFigures) -> list[TraceNote]:
    unequal = _unequal(baseline, candidate)
    if not unequal:
        return []
    counts = ", ".join(f"{kind} {baseline.calls[kind]} and {candidate.calls[kind]}" for kind in unequal)
    how = (
        "steps are compared"
        if _comparable_steps(baseline, candidate)
        else "compared per call, totals say nothing"
    )
    return [TraceNote("unequal_calls", f"call counts differ ({counts}): {how}")]


def _missing(baseline: RecordingFigures, candidate: RecordingFigures) -> list[TraceNote]:
    warnings = []
    for name, one, other in (("baseline", baseline, candidate), ("candidate", candidate, baseline)):
        only = [kind for kind in one.calls if kind not in other.calls]
        if only:
            warnings.append(
                TraceNote("kind_only_here", f"{name} alone has kernels of kind {', '.join(only)}")
            )
    return warnings


def _long(
    baseline: RecordingFigures, candidate: RecordingFigures, only: str | None = None
) -> list[TraceNote]:
    """Of every kind, or of `only` one: a single call that outweighs its kind (a first one, which loads or tunes something) is in every sum and mean."""
    found = []
    for name, one in _named(baseline, candidate):
        for kind, (longest, second) in one.longest_ns.items():
            other = candidate if one is baseline else baseline
            if longest < ALIKE * other.longest_ns.get(kind, [0])[0]:
                continue
            if only in (None, kind) and longest > LONG_TIMES * second and longest > LONG_SHARE * one.total_ns:
                text = f"one {kind} call took {longest / 1e3:.1f} us, the next longest {second / 1e3:.1f} us"
                share = f"{100 * longest / one.total_ns:.0f} % of the kernel time"
                found.append(TraceNote("one_long_call", f"{name}: {text}: it is {share}"))
    return found


def _late(baseline: RecordingFigures, candidate: RecordingFigures) -> list[TraceNote]:
    """Ranks that wait for each other make an arm look slow without its kernels being so."""
    found = []
    for name, one in _named(baseline, candidate):
        wait = one.collectives.wait_ns
        if wait is None and one.devices == 1 and one.collectives.total_ns > LATE_SHARE * one.total_ns:
            share = (
                f"{100 * one.collectives.total_ns / one.total_ns:.0f} % of the kernel time is in collectives"
            )
            text = f"{share}; how much of that is waiting for other ranks one rank's recording cannot say"
            found.append(TraceNote("wait_unknown", f"{name}: {text}"))
        if wait and wait > LATE_SHARE * one.total_ns:
            share = f"{100 * wait / one.total_ns:.0f} % of the kernel time is waiting for the last rank"
            found.append(TraceNote("late_ranks", f"{name}: {share}: the verdict leaves it out"))
    return found


def _per_call(baseline: RecordingFigures, candidate: RecordingFigures) -> dict[str, dict[str, float | None]]:
    return {kind: _call(baseline, candidate, kind) for kind in sorted({*baseline.calls, *candidate.calls})}


def _call(baseline: RecordingFigures, candidate: RecordingFigures, kind: str) -> dict[str, float | None]:
    before, after = baseline.mean_ns.get(kind), candidate.mean_ns.get(kind)
    return {
        "baseline_ns": before,
        "candidate_ns": after,
        "speedup": _ratio(before, after),
        "work_speedup": _over_work(baseline.by_work.get(kind, {}), candidate.by_work.get(kind, {})),
        "baseline_median_ns": baseline.median_ns.get(kind),
        "candidate_median_ns": candidate.median_ns.get(kind),
        "baseline_calls": baseline.calls.get(kind, 0),
        "candidate_calls": candidate.calls.get(kind, 0),
    }


def _over_work(before: dict[str, tuple[int, float]], after: dict[str, tuple[int, float]]) -> float | None:
    """Speed-up of the medians of the work that both arms did, each weighted by the calls that both made of it."""
    weights = {key: min(before[key][0], after[key][0]) for key in before if key in after}
    sums = [sum(weight * side[key][1] for key, weight in weights.items()) for side in (before, after)]
    return _ratio(*sums)


def _per_step(baseline: RecordingFigures, candidate: RecordingFigures) -> dict[str, float | None]:
    """Speed-ups of the time per step and device; the times themselves where steps are marked in both."""
    sound = _comparable_steps(baseline, candidate)
    marked = baseline.steps is not None and candidate.steps is not None
    before, after = (_times_of_a_step(one, marked) if sound else _NO_TIMES for one in (baseline, candidate))
    answer: dict[str, float | None] = {
        f"{key}_speedup": _ratio(before[key], after[key]) for key in ("sum", "busy")
    }
    if before["sum_without_wait"] is not None and after["sum_without_wait"] is not None:
        answer["sum_without_wait_speedup"] = _ratio(before["sum_without_wait"], after["sum_without_wait"])
    if marked:
        arms = {"baseline": before, "candidate": after}
        answer |= {f"{name}_{key}_ns": one[key] for name, one in arms.items() for key in ("sum", "busy")}
    return answer


_NO_TIMES: dict[str, float | None] = {"sum": None, "busy": None, "sum_without_wait": None}


def _times_of_a_step(one: RecordingFigures, marked: bool) -> dict[str, float | None]:
    """Sum, union and sum without waiting, ns per device and step (of the whole recording where none is marked)."""
    share = one.devices * (one.steps.count if one.steps and marked else 1)
    wait = one.collectives.wait_ns
    whole = {
        "sum": one.total_ns,
        "busy": one.busy_ns,
        "sum_without_wait": None if wait is None else one.total_ns - wait,
    }
    return {key: None if value is None else value / share for key, value in whole.items()}


def _comparable_steps(baseline: RecordingFigures, candidate: RecordingFigures) -> bool:
    if baseline.partial or candidate.partial or baseline.devices != candidate.devices:
        return False
    one, other = baseline.steps, candidate.steps
    if one and other and one.mix != other.mix:
        return False
    return not _unequal(baseline, candidate) or bool(one and other and one.regular and other.regular)


def _ratio(before: float | None, after: float | None) -> float | None:
    return before / after if before and after else None


def _obstacles(
    baseline: RecordingFigures, candidate: RecordingFigures, kind: str | None, part: bool
) -> list[str]:
    reasons = [f"{name} is a partial recording" for name, one in _named(baseline, candidate) if one.partial]
    # A rank against the job that it is of: its calls are compared, sums are not.
    if baseline.devices != candidate.devices and not part:
        reasons.append(f"{baseline.devices} devices against {candidate.devices}")
    if baseline.steps and candidate.steps and baseline.steps.mix != candidate.steps.mix:
        reasons.append(f"other steps: {baseline.steps.mix} against {candidate.steps.mix}")
    for name, one in _named(baseline, candidate):
        if kind and kind not in one.calls:
            reasons.append(f"{name} has no kernels of kind {kind}")
    return reasons


def _named(baseline: RecordingFigures, candidate: RecordingFigures):
    return ("baseline", baseline), ("candidate", candidate)


def _basis(per_call, per_step, kind: str | None, late: bool) -> tuple[str, float | None]:
    """What the verdict rests on, and its speed-up."""
    if kind is None and late and per_step.get("sum_without_wait_speedup"):
        return "sum of kernel times per step without waiting", per_step["sum_without_wait_speedup"]
    if kind is None and per_step["busy_speedup"]:
        return "busy time per step", per_step["busy_speedup"]
    if kind is None and per_step["sum_speedup"]:
        return "sum of kernel times per step", per_step["sum_speedup"]
    chosen = kind or "gemm"
    row = per_call.get(chosen, {})
    if row.get("work_speedup"):
        return f"median time per {chosen} call of equal work", row["work_speedup"]
    return f"time per {chosen} call", row.get("speedup")


def _verdict(speedup: float | None, same_within: float) -> str:
    if speedup is None:
        return "not_comparable"
    if abs(speedup - 1) <= same_within:
        return "same"
    return "faster" if speedup > 1 else "slower"


def _because(basis: str, speedup: float | None) -> str:
    return basis if speedup is None else f"{basis}: baseline over candidate {speedup:.3f}"
