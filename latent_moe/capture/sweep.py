"""Every tail at a list of T, eager and graph-captured: the rows of tails.csv.

T tokens, H hidden, L latent, tp ranks.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from latent_moe.capture.inputs import Inputs, float64_answer, make_inputs
from latent_moe.capture.shapes_only import ShapesOnly
from latent_moe.capture.timing import Timing, sample, summarise
from latent_moe.config import LatentMoEConfig
from latent_moe.errors import InputError
from latent_moe.parallel import TensorParallel
from latent_moe.tails import TAILS, Tail

CHECK_UP_TO = {
    "cpu": 512,
    "cuda": 16384,
}  # tokens; float64 on larger inputs would take longer than the timing
CHUNKS_FROM = 1024  # tokens; chunks of less only add launches
ERROR_BOUND = {"bfloat16": 1e-2, "float16": 1e-2, "float32": 1e-5}


@dataclass(frozen=True)
class Sweep:
    """What to time. `options` maps a variant's name to (tail, keyword arguments of its function)."""

    config: LatentMoEConfig
    tails: tuple[str, ...]
    tokens: tuple[int, ...]
    modes: tuple[str, ...]
    dtype: str = "bfloat16"
    samples: int = 30
    shapes_of: int | None = None
    options: tuple[tuple[str, str, tuple[tuple[str, Any], ...]], ...] = ()

    def variants(self) -> Iterator[tuple[str, Tail, dict[str, Any]]]:
        """(name, tail, options) of everything that is timed."""
        for name in self.tails:
            yield name, known_tail(name), {}
        for name, tail, options in self.options:
            yield name, known_tail(tail), dict(options)


def known_tail(name: str) -> Tail:
    """The tail called `name`. Raises InputError that names the tails there are."""
    if name not in TAILS:
        raise InputError(f"unknown tail {name!r} (there are: {', '.join(TAILS)})")
    return TAILS[name]


def run_sweep(tp: TensorParallel, sweep: Sweep) -> dict[str, list[dict[str, Any]]]:
    """On every rank: {"rows": times, "skipped": refusals, "checks": errors against float64}."""
    if sweep.shapes_of:
        tp = ShapesOnly(rank=0, size=sweep.shapes_of, device=tp.device)
    found: dict[str, list[dict[str, Any]]] = {"rows": [], "skipped": [], "checks": []}
    for tokens in sweep.tokens:
        for name, tail, options in sweep.variants():
            if options.keys() & {"chunks", "exchange"} and tokens < CHUNKS_FROM:
                continue
            why = refused(tail, sweep, tp, tokens)
            if why:
                found["skipped"].append({"tail": name, "tokens": tokens, "reason": why})
                continue
            _one(tp, sweep, name, tail, options, tokens, found)
    return found


def refused(tail: Tail, sweep: Sweep, tp: TensorParallel, tokens: int) -> str | None:
    """Why this tail is not timed at this T, or None."""
    if tail.rows == "own" and sweep.config.hidden_size % tp.size:
        return f"tp {tp.size} does not divide H {sweep.config.hidden_size}"
    if tail.name == "fused" and sweep.dtype == "float32":
        return "the fused kernel takes bfloat16 and float16"
    return tail.refuse(sweep.config, tp.size, tokens)


def _one(tp, sweep: Sweep, name, tail: Tail, options, tokens: int, found) -> None:
    inputs = make_inputs(tail, sweep.config, tokens, tp, getattr(torch, sweep.dtype))

    def run(index: int):
        return tail.function(
            inputs.routed[index], inputs.shared[index], inputs.weights[index], inputs.norm, tp, **options
        )

    if tokens <= CHECK_UP_TO[tp.device.type] and not sweep.shapes_of:
        found["checks"].append(_check(tp, sweep, name, tokens, inputs, run))
    for mode in sweep.modes:
        timing = _time(tp, sweep, run, inputs, tokens, mode == "graph")
        found["rows"].append(
            {"tail": name, "tokens": tokens, "tp": tp.size, "mode": mode, **_rounded(timing)}
        )


def _time(tp, sweep: Sweep, run, inputs: Inputs, tokens: int, graph: bool) -> Timing:
    samples = sweep.samples if tokens < 4096 else max(8, sweep.samples // 2)
    mine = sample(run, inputs.restore, len(inputs.routed), samples, graph, tp.device, lambda: _line_up(tp))
    return summarise(_slowest(tp, mine))


def _line_up(tp: TensorParallel) -> None:
    if tp.group is not None:
        dist.barrier(group=tp.group)


def _slowest(tp: TensorParallel, samples_us: list[float]) -> list[float]:
    """A sample takes as long as its slowest rank."""
    if tp.group is None:
        return samples_us
    times = torch.tensor(samples_us, dtype=torch.float64, device=tp.device)
    dist.all_reduce(times, op=dist.ReduceOp.MAX, group=tp.group)
    return times.tolist()


def _check(tp, sweep: Sweep, name: str, tokens: int, inputs: Inputs, run) -> dict[str, Any]:
    """Error against float64, and whether a second run on the same inputs gives the same bits."""
    inputs.restore()
    first = run(0).clone()
    inputs.restore()
    again = run(0)
    dtype = getattr(torch, sweep.dtype)
    answer = float64_answer(sweep.config, tokens, list(range(tp.size)), tp.device, dtype)
    error = float((first.double() - answer).norm() / answer.norm())
    return {
        "tail": name,
        "tokens": tokens,
        "tp": tp.size,
        "max_rel_err": error,
        "bound": ERROR_BOUND[sweep.dtype],
        "same_bits": torch.equal(first, again),
    }


def _rounded(timing: Timing) -> dict[str, float]:
    return {
        "median_us": round(timing.median_us, 3),
        "p10_us": round(timing.p10_us, 3),
        "p90_us": round(timing.p90_us, 3),
    }
