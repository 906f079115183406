"""Every tail at a list of T, eager and graph-captured: the rows of tails.csv.

T tokens, H hidden, L latent, tp ranks.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from latent_moe.config import LatentMoEConfig
from latent_moe.lab.microbench.inputs import Inputs, float64_answer, make_inputs
from latent_moe.lab.microbench.shapes_only import ShapesOnly
from latent_moe.lab.microbench.timing import Timing, sample, summarise
from latent_moe.parallel import TORCH, VLLM, TensorParallel
from latent_moe.runner import size_refusal
from latent_moe.tail_variants.declaration import Tail
from latent_moe.tail_variants.registry import known_tail

CHECK_UP_TO = {
    "cpu": 512,
    "cuda": 16384,
}  # tokens; float64 on larger inputs would take longer than the timing
CHUNKS_FROM = 1024  # tokens; chunks of less only add launches
ERROR_BOUND = {"bfloat16": 1e-2, "float16": 1e-2, "float32": 1e-5}


@dataclass(frozen=True)
class Sweep:
    """What to time. `options` maps a variant's name to (tail, keyword arguments of its function).

    The samples of a row are taken in `rounds` passes over everything, minutes apart: what disturbs the host for a while
    then disturbs every row alike and no row's median. `communicator`: TORCH, or VLLM for what a vLLM server would use.
    """

    config: LatentMoEConfig
    tails: tuple[str, ...]
    tokens: tuple[int, ...]
    modes: tuple[str, ...]
    dtype: str = "bfloat16"
    samples: int = 30
    rounds: int = 1
    shapes_of: int | None = None
    communicator: str = TORCH
    options: tuple[tuple[str, str, tuple[tuple[str, Any], ...]], ...] = ()

    def described(self) -> dict[str, Any]:
        """What a reader of the times needs to repeat them, beside the tails and T that they name."""
        sizes = {"hidden_size": self.config.hidden_size, "latent_size": self.config.latent_size}
        how: dict[str, Any] = {**sizes, "dtype": self.dtype, "samples": self.samples, "rounds": self.rounds}
        return how if self.shapes_of else {"communicator": self.communicator, **how}

    def variants(self) -> Iterator[tuple[str, Tail, dict[str, Any]]]:
        """(name, tail, options) of everything that is timed."""
        for name in self.tails:
            yield name, known_tail(name), {}
        for name, tail, options in self.options:
            yield name, known_tail(tail), dict(options)


def run_sweep(tp: TensorParallel, sweep: Sweep) -> dict[str, list[dict[str, Any]]]:
    """On every rank: {"rows": times, "skipped": refusals, "checks": errors against float64}; `tp` as ranks_for gives it."""
    points, skipped = _points(tp, sweep)
    checks: list[dict[str, Any]] = []
    times: dict[tuple[str, int, str], list[float]] = {}
    for number, samples in enumerate(shares(sweep.samples, sweep.rounds)):
        for point in points:
            inputs = make_inputs(point.tail, sweep.config, point.tokens, tp, getattr(torch, sweep.dtype))
            run = _runner(tp, point, inputs)
            if number == 0 and point.tokens <= CHECK_UP_TO[tp.device.type] and not sweep.shapes_of:
                checks.append(_check(tp, sweep, point, inputs, run))
            for mode in sweep.modes:
                taken = _time(tp, run, inputs, _fewer(samples, point.tokens), mode == "graph")
                times.setdefault((point.name, point.tokens, mode), []).extend(taken)
    rows = [
        {"tail": name, "tokens": tokens, "tp": tp.size, "mode": mode, **_rounded(summarise(taken))}
        for (name, tokens, mode), taken in times.items()
    ]
    return {"rows": rows, "skipped": skipped, "checks": checks}


@dataclass(frozen=True)
class Point:
    """One variant of a tail at one T."""

    name: str
    tail: Tail
    options: dict[str, Any]
    tokens: int


def _points(tp: TensorParallel, sweep: Sweep) -> tuple[list[Point], list[dict[str, Any]]]:
    """(what is timed, in order; what is refused, with the reason)."""
    points, skipped = [], []
    for tokens in sweep.tokens:
        for name, tail, options in sweep.variants():
            if options.keys() & {"chunks", "exchange"} and tokens < CHUNKS_FROM:
                continue
            why = refused(tail, sweep, tp, tokens)
            if why:
                skipped.append({"tail": name, "tokens": tokens, "reason": why})
            else:
                points.append(Point(name, tail, options, tokens))
    return points, skipped


def _runner(tp: TensorParallel, point: Point, inputs: Inputs) -> Callable[[int], torch.Tensor]:
    def run(index: int) -> torch.Tensor:
        partials = inputs.routed[index], inputs.shared[index]
        return point.tail.function(*partials, inputs.weights[index], inputs.norm, tp, **point.options)

    return run


def _fewer(samples: int, tokens: int) -> int:
    """Long calls vary less."""
    return samples if tokens < 4096 else -(-samples // 2)


def ranks_for(tp: TensorParallel, sweep: Sweep) -> AbstractContextManager[TensorParallel]:
    """The ranks that the sweep runs on, made of those that were launched."""
    if sweep.shapes_of:
        return nullcontext(ShapesOnly(rank=0, size=sweep.shapes_of, device=tp.device))
    if sweep.communicator == VLLM:
        from latent_moe.vllm_plugin.serving_ranks import serving_ranks

        return serving_ranks(tp)
    return nullcontext(tp)


def shares(samples: int, rounds: int) -> list[int]:
    """The samples of each round: as even as they come, none of nothing."""
    rounds = min(rounds, samples)
    return [samples // rounds + (number < samples % rounds) for number in range(rounds)]


def refused(tail: Tail, sweep: Sweep, tp: TensorParallel, tokens: int) -> str | None:
    """Why this tail is not timed at this T, or None."""
    refused = size_refusal(tail, sweep.config, tp.size, tokens, getattr(torch, sweep.dtype))
    return None if refused is None else refused.text


def _time(tp, run, inputs: Inputs, samples: int, graph: bool) -> list[float]:
    """us, a sample each, of the slowest rank."""
    sets = len(inputs.routed)
    mine = sample(run, inputs.restore, sets, samples, graph, tp.device, lambda: _line_up(tp), tp.capturing)
    return _slowest(tp, mine)


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


def _check(tp, sweep: Sweep, point: Point, inputs: Inputs, run) -> dict[str, Any]:
    """Error against float64, and whether a second run on the same inputs gives the same bits."""
    inputs.restore()
    first = run(0).clone()
    inputs.restore()
    again = run(0)
    dtype = getattr(torch, sweep.dtype)
    answer = float64_answer(sweep.config, point.tokens, list(range(tp.size)), tp.device, dtype)
    error = float((first.double() - answer).norm() / answer.norm())
    return {
        "tail": point.name,
        "tokens": point.tokens,
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
