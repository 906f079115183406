"""The tail model fitted to a recording: machine figures from some T, judged on T that the fit never saw.

Two steps. First the machine's figures (kernel, GEMM, memory and collective efficiencies) are moved until the tails'
sums fit the chosen T best, all tails at once. What is left of each tail (kernels that no term describes, links and
GEMM in each other's way) becomes a factor per tail, straight between the chosen T on log axes.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from latent_moe.config import KIMI_K3, LatentMoEConfig
from latent_moe.errors import InputError
from latent_moe.lab.cost.hardware import Hardware
from latent_moe.lab.cost.tail import TAIL_NAMES, tail_cost
from latent_moe.lab.cost.tail_timings import loglog

# Figures that a recording of tails can move; the others are the data sheet's.
COMPUTE = ("kernel_us", "gemm_floor_us", "gemm_efficiency", "gemm_bandwidth_efficiency", "stream_efficiency")
LINKS = ("collective_latency_us", "collective_efficiency")
STEPS = (0.3, 0.1, 0.03, 0.01)


@dataclass(frozen=True)
class Fitted:
    """A machine and one factor line per tail: `us(tail, tokens)` predicts what the recording would show.

    One mode (eager or graph) and one tp; `collectives` False for recordings on one GPU.
    """

    hardware: Hardware
    tp: int
    config: LatentMoEConfig
    collectives: bool
    factors: Mapping[str, Mapping[int, float]]

    def us(self, tail: str, tokens: int) -> float:
        """Predicted time. Raises InputError for a tail that the fit did not see."""
        if tail not in self.factors:
            raise InputError(f"the fit has not seen the tail {tail!r}")
        return self.sum_us(tail, tokens) * loglog(self.factors[tail], tokens)

    def sum_us(self, tail: str, tokens: int) -> float:
        """The sum of the terms alone, without the tail's factor."""
        return tail_cost(tail, tokens, self.tp, self.hardware, self.config, self.collectives).total_us


@dataclass(frozen=True)
class HeldOut:
    """Predicted beside measured at the points held out of the fit."""

    tail: str
    tokens: tuple[int, ...]
    errors: tuple[float, ...]

    @property
    def median_error(self) -> float:
        """Median relative error of this tail."""
        return median(abs(error) for error in self.errors)


def of_series(rows: Iterable[Mapping], tp: int, mode: str) -> list[Mapping]:
    """The rows of known tails at one tp and mode. Raises InputError when there are none."""
    chosen = [row for row in rows if row["tp"] == tp and row["mode"] == mode and row["tail"] in TAIL_NAMES]
    if not chosen:
        raise InputError(f"the recording has no {mode} rows of known tails at tp {tp}")
    return chosen


def device_bound(rows: Iterable[Mapping], slack: float = 1.25) -> list[Mapping]:
    """The rows in which the device, not the host, sets the time.

    An eager row far above the captured graph of the same tail, T and tp waits for the host to launch its kernels:
    that time is the host's, varies with it, and no model of the device has it. Graph rows, and eager rows without a
    graph beside them, are kept.
    """
    rows = list(rows)
    graph = {
        (row["tail"], row["tp"], row["tokens"]): row["median_us"] for row in rows if row["mode"] == "graph"
    }

    def limit(row: Mapping) -> float:
        return slack * graph.get((row["tail"], row["tp"], row["tokens"]), math.inf)

    return [row for row in rows if row["mode"] == "graph" or row["median_us"] <= limit(row)]


def fit(
    rows: Sequence[Mapping],
    hardware: Hardware,
    tp: int,
    config: LatentMoEConfig = KIMI_K3,
    collectives: bool = True,
) -> Fitted:
    """Fit to rows (tail, tokens, median_us) of one mode and tp. Raises InputError without rows."""
    if not rows:
        raise InputError("no rows to fit")
    machine = hardware.replace(gemm_times=None)
    bare = Fitted(machine, tp, config, collectives, {})
    for step in STEPS:
        bare = _descend(bare, rows, step)
    factors: dict[str, dict[int, float]] = {}
    for row in rows:
        factors.setdefault(row["tail"], {})[row["tokens"]] = row["median_us"] / bare.sum_us(
            row["tail"], row["tokens"]
        )
    return Fitted(bare.hardware, tp, config, collectives, factors)


def _descend(fitted: Fitted, rows: Sequence[Mapping], step: float) -> Fitted:
    """Move one figure at a time by a factor of 1 + step, up or down, while the loss falls (at most 20 rounds)."""
    names = COMPUTE + (LINKS if fitted.collectives else ())
    best = _loss(fitted, rows)
    for _ in range(20):
        before = best
        for name in names:
            fitted, best = _move(fitted, rows, name, step, best)
        if best >= before * 0.999:
            break
    return fitted


def _move(
    fitted: Fitted, rows: Sequence[Mapping], name: str, step: float, best: float
) -> tuple[Fitted, float]:
    for factor in (1 + step, 1 / (1 + step)):
        value = getattr(fitted.hardware, name) * factor
        # No kernel and no link is faster than the data sheet's peak.
        if name.endswith("efficiency") and value > 1:
            continue
        moved = Fitted(
            fitted.hardware.replace(**{name: value}), fitted.tp, fitted.config, fitted.collectives, {}
        )
        loss = _loss(moved, rows)
        if loss < best:
            return moved, loss
    return fitted, best


def _loss(fitted: Fitted, rows: Sequence[Mapping]) -> float:
    # Absolute logs: a tail whose sum misses a term must not pull every figure after it.
    return sum(abs(math.log(fitted.sum_us(row["tail"], row["tokens"]) / row["median_us"])) for row in rows)


def hold_out(
    rows: Sequence[Mapping],
    hardware: Hardware,
    tp: int,
    held: Mapping[str, Iterable[int]],
    config: LatentMoEConfig = KIMI_K3,
    collectives: bool = True,
) -> dict[str, HeldOut]:
    """Fit without the T in `held` (by tail) and predict those: {tail: HeldOut}."""
    out = {(tail, tokens) for tail, those in held.items() for tokens in those}
    kept = [row for row in rows if (row["tail"], row["tokens"]) not in out]
    fitted = fit(kept, hardware, tp, config, collectives)
    found: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        if (row["tail"], row["tokens"]) in out and row["tail"] in fitted.factors:
            error = fitted.us(row["tail"], row["tokens"]) / row["median_us"] - 1
            found.setdefault(row["tail"], []).append((row["tokens"], error))
    return _held_out(found)


def _held_out(found: Mapping[str, list[tuple[int, float]]]) -> dict[str, HeldOut]:
    return {tail: HeldOut(tail, *zip(*sorted(points), strict=True)) for tail, points in found.items()}


def folds(rows: Iterable[Mapping]) -> list[dict[str, list[int]]]:
    """Two sets of T to hold out, by tail: every second inner T, then the others.

    The first and last T of a tail are never held out: beyond its points a fit extrapolates, which is another claim.
    """
    by_tail: dict[str, set[int]] = {}
    for row in rows:
        by_tail.setdefault(row["tail"], set()).add(row["tokens"])
    return [{tail: sorted(tokens)[1:-1][start::2] for tail, tokens in by_tail.items()} for start in (0, 1)]


def cross_validate(
    rows: Sequence[Mapping],
    hardware: Hardware,
    tp: int,
    config: LatentMoEConfig = KIMI_K3,
    collectives: bool = True,
) -> dict[str, HeldOut]:
    """Every inner T of every tail predicted by a fit that did not see it, in two folds."""
    found: dict[str, list[tuple[int, float]]] = {}
    for held in folds(rows):
        if any(held.values()):
            for tail, result in hold_out(rows, hardware, tp, held, config, collectives).items():
                found.setdefault(tail, []).extend(zip(result.tokens, result.errors, strict=True))
    return _held_out(found)
