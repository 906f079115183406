"""Simulated benchmark sessions: the noise of real runs, two arms, and an effect that is planted or none.

Two things vary, the time to the first token and the time per output token, each by a log-normal factor per server start
(`boot`) and one per run (`run`). The other metrics follow as they do in a closed loop of `concurrency` requests: a
request takes TTFT + (osl - 1) TPOT, and Little's law gives the rates.
"""

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from statistics import fmean

import numpy as np

from latent_moe.errors import InputError
from latent_moe.lab.results.read import Results
from latent_moe.lab.results.run import Run

_ISL, _OSL, _CONCURRENCY = 256, 64, 4
_TTFT_MS, _TPOT_MS = 400.0, 40.0


@dataclass(frozen=True)
class Noise:
    """Standard deviations of the logarithms (0.01 is about 1 %); `degrees` None: normal, else Student's t of so many
    degrees of freedom (3: heavy tails) scaled to the same standard deviation.
    """

    ttft_boot: float
    ttft_run: float
    tpot_boot: float
    tpot_run: float
    degrees: int | None = None
    source: str = "assumed"

    def as_dict(self) -> dict:
        """For a manifest."""
        return asdict(self)


# Until runs of this machine are given: 1 to 2 % between starts and 2 to 4 % between runs, times to first token twice as
# noisy as times per token. An assumption, labelled so.
ASSUMED = Noise(ttft_boot=0.02, ttft_run=0.04, tpot_boot=0.01, tpot_run=0.02)


def noise_from_runs(runs: Iterable[Run]) -> Noise:
    """Noise of recorded runs: the spread of log TTFT and log TPOT within arm and cell, pooled. One run per server start
    cannot tell the two sources apart, and a paired comparison needs only their sum: all of it is given to `boot`.

    Raises InputError where no arm has two runs of one cell.
    """
    groups: dict[tuple, list[Run]] = defaultdict(list)
    for run in runs:
        groups[(run.arm, *run.cell)].append(run)
    spreads = {name: _pooled_sd(groups.values(), name) for name in ("mean_ttft_ms", "mean_tpot_ms")}
    return Noise(spreads["mean_ttft_ms"], 0.0, spreads["mean_tpot_ms"], 0.0, source="recorded runs")


def _pooled_sd(groups: Iterable[list[Run]], metric: str) -> float:
    squares, freedom = 0.0, 0
    for runs in groups:
        logs = [math.log(run.values[metric]) for run in runs if metric in run.values]
        if len(logs) > 1:
            squares += sum((value - fmean(logs)) ** 2 for value in logs)
            freedom += len(logs) - 1
    if freedom == 0:
        raise InputError(f"no arm has two runs of one cell: the noise of {metric} is unknown")
    return math.sqrt(squares / freedom)


def session(noise: Noise, pairs: int, effect_pct: float, rng: np.random.Generator) -> Results:
    """Runs of `pairs` pairs, A B B A, one server start a run; the candidate's throughput is `effect_pct` higher."""
    factor = 1 / (1 + effect_pct / 100)
    runs: list[Run] = []
    for pair in range(1, pairs + 1):
        arms = ("baseline", "candidate") if pair % 2 else ("candidate", "baseline")
        runs += [_run(noise, arm, pair, len(runs) + k, factor, rng) for k, arm in enumerate(arms)]
    return Results(runs=runs)


def _run(noise: Noise, arm: str, pair: int, order: int, factor: float, rng: np.random.Generator) -> Run:
    faster = factor if arm == "candidate" else 1.0
    ttft_ms = (
        _TTFT_MS * faster * math.exp(_shock(noise.ttft_boot, noise, rng) + _shock(noise.ttft_run, noise, rng))
    )
    tpot_ms = (
        _TPOT_MS * faster * math.exp(_shock(noise.tpot_boot, noise, rng) + _shock(noise.tpot_run, noise, rng))
    )
    return Run(
        source=f"simulated run {order}",
        arm=arm,
        role=arm,
        isl=_ISL,
        osl=_OSL,
        concurrency=_CONCURRENCY,
        values=_metrics(ttft_ms, tpot_ms),
        pair=pair,
        order=order,
        boot=str(order),
        seed=pair,
        cold=False,
        prefix_caching=False,
        started=f"{order:06d}",
        kind="synthetic",
    )


def _shock(spread: float, noise: Noise, rng: np.random.Generator) -> float:
    if noise.degrees is None:
        return spread * rng.standard_normal()
    return spread * rng.standard_t(noise.degrees) * math.sqrt((noise.degrees - 2) / noise.degrees)


def _metrics(ttft_ms: float, tpot_ms: float) -> dict[str, float]:
    req_per_s = 1000 * _CONCURRENCY / (ttft_ms + (_OSL - 1) * tpot_ms)
    return {
        "total_tok_per_s": req_per_s * (_ISL + _OSL),
        "req_per_s": req_per_s,
        "output_tok_per_s": req_per_s * _OSL,
        "mean_ttft_ms": ttft_ms,
        "mean_tpot_ms": tpot_ms,
        "mean_itl_ms": tpot_ms,
    }
