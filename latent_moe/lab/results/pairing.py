"""Runs of two arms into independent pairs: what the statistics may count as one observation each."""

import math
from collections import defaultdict
from dataclasses import dataclass

from latent_moe.lab.results import Run, Warning


@dataclass(frozen=True)
class Pair:
    """Runs of both arms that belong together; more than one of an arm are repeats of the same observation."""

    baseline: tuple[Run, ...]
    candidate: tuple[Run, ...]

    def log_ratio(self, metric: str) -> float | None:
        """ln(candidate / baseline), None where an arm lacks the metric."""
        one, other = mean_value(self.baseline, metric), mean_value(self.candidate, metric)
        return None if one is None or other is None else math.log(other) - math.log(one)


def mean_value(runs: tuple[Run, ...], metric: str) -> float | None:
    """Geometric mean over the runs that have the metric (so that deltas recompute from the printed means)."""
    values = [run.values[metric] for run in runs if metric in run.values]
    if len(values) <= 1:
        return values[0] if values else None
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def without_copies(runs: list[Run]) -> tuple[list[Run], list[Warning]]:
    """Drop runs that are the same run read twice: they would count as evidence that was never taken."""
    kept, warnings, seen = [], [], set()
    for run in runs:
        counts = (run.completed, run.duration_s)
        identity = (run.arm, run.cell, run.started, counts, tuple(sorted(run.values.items())))
        if run.duration_s is not None and identity in seen:
            warnings.append(
                Warning("duplicate_run", f"{run.source}: the same run as another file, counted once")
            )
            continue
        seen.add(identity)
        kept.append(run)
    return kept, warnings


def pair_runs(baseline: list[Run], candidate: list[Run]) -> tuple[list[Pair], list[Warning]]:
    """Pairs of one cell: by their pair number where every run has one, else in the order they were taken."""
    if all(run.pair is not None for run in (*baseline, *candidate)):
        pairs, warnings = _by_number(baseline, candidate)
    else:
        pairs, warnings = _by_order(baseline, candidate)
    merged = _one_per_boot(pairs)
    if len(merged) < len(pairs):
        text = f"{_cell(baseline[0])}: {len(pairs)} pairs share server starts and count as {len(merged)}"
        warnings.append(Warning("shared_boot", text))
    return merged, warnings


def _by_number(baseline: list[Run], candidate: list[Run]) -> tuple[list[Pair], list[Warning]]:
    sides: dict[int, tuple[list[Run], list[Run]]] = defaultdict(lambda: ([], []))
    for side, runs in enumerate((baseline, candidate)):
        for run in runs:
            sides[run.pair or 0][side].append(run)
    whole = {number: both for number, both in sorted(sides.items()) if all(both)}
    halves = sorted(set(sides) - set(whole))
    warnings = []
    if halves:
        text = f"{_cell(baseline[0])}: pair {', '.join(map(str, halves))} has one arm only and is left out"
        warnings.append(Warning("incomplete_pair", text))
    return [Pair(tuple(one), tuple(other)) for one, other in whole.values()], warnings


def _by_order(baseline: list[Run], candidate: list[Run]) -> tuple[list[Pair], list[Warning]]:
    ordered = [sorted(runs, key=lambda run: run.started) for runs in (baseline, candidate)]
    pairs = [Pair((one,), (other,)) for one, other in zip(*ordered, strict=False)]
    warnings = []
    if len(pairs) > 1:
        text = "runs carry no pair number: paired in the order they were taken; the interval holds the variance of "
        text += "restarts only if the server was restarted between them"
        warnings.append(Warning("paired_by_order", f"{_cell(baseline[0])}: {text}"))
    if len(baseline) != len(candidate):
        text = f"{len(baseline)} against {len(candidate)} runs: the last of the longer side are left out"
        warnings.append(Warning("incomplete_pair", f"{_cell(baseline[0])}: {text}"))
    return pairs, warnings


def _one_per_boot(pairs: list[Pair]) -> list[Pair]:
    """Merge pairs that share a server start: what one start brought is in all of them, so they are one observation."""
    groups: list[tuple[set[tuple[str, str]], Pair]] = []
    for pair in pairs:
        boots = {
            (side, run.boot) for side in ("baseline", "candidate") for run in getattr(pair, side) if run.boot
        }
        for other in [group for group in groups if group[0] & boots]:
            groups.remove(other)
            boots |= other[0]
            pair = Pair(other[1].baseline + pair.baseline, other[1].candidate + pair.candidate)
        groups.append((boots, pair))
    return [pair for _, pair in groups]


def _cell(run: Run) -> str:
    return f"{run.isl}/{run.osl} at concurrency {run.concurrency}"
