"""Every tail at a list of T, eager and graph-captured: the rows of tails.csv, each beside its limit and the choice of `auto`.

T tokens, H hidden, L latent, tp ranks.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from latent_moe.config import LatentMoEConfig
from latent_moe.lab.cost import hardware
from latent_moe.lab.cost.auto_tail import pick
from latent_moe.lab.microbench.inputs import Inputs, float64_answer, make_inputs
from latent_moe.lab.microbench.journal import note
from latent_moe.lab.microbench.timing import Timing, sample, summarise
from latent_moe.parallel import TORCH, VLLM, Done, TensorParallel
from latent_moe.platform import Platform
from latent_moe.runner import size_refusal
from latent_moe.tail_variants.declaration import Tail
from latent_moe.tail_variants.registry import TAILS, known_tail

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


def run_sweep(
    tp: TensorParallel, sweep: Sweep, journal: Path | None = None
) -> dict[str, list[dict[str, Any]]]:
    """On every rank: {"rows": times, "skipped": refusals, "checks": errors against float64}; `tp` as ranks_for gives it.

    Rank 0 writes what is done into `journal` as it goes.
    """
    journal = None if tp.rank else journal
    points, skipped = _points(tp, sweep)
    for item in skipped:
        note(journal, "skipped", **item)
    checks: list[dict[str, Any]] = []
    times: dict[tuple[str, int, str], list[float]] = {}
    shared_out = shares(sweep.samples, sweep.rounds)
    for number, samples in enumerate(shared_out):
        about = {"points": len(points), "modes": " and ".join(sweep.modes), "tp": tp.size}
        note(journal, "round", number=number + 1, rounds=len(shared_out), **about)
        for point in points:
            inputs = make_inputs(point.tail, sweep.config, point.tokens, tp, getattr(torch, sweep.dtype))
            run = _runner(tp, point, inputs)
            if number == 0 and point.tokens <= CHECK_UP_TO[tp.device.type] and not sweep.shapes_of:
                checks.append(_check(tp, sweep, point, inputs, run))
                note(journal, "check", **checks[-1])
            for mode in sweep.modes:
                taken = _time(tp, run, inputs, _fewer(samples, point.tokens), mode == "graph")
                times.setdefault((point.name, point.tokens, mode), []).extend(taken)
                note(journal, "taken", tail=point.name, tokens=point.tokens, mode=mode, samples_us=taken)
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
    samples_us = sample(
        run, inputs.restore, sets, samples, graph, tp.device, lambda: _line_up(tp), tp.capturing
    )
    return _slowest(tp, samples_us)


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
    return {name: round(us, 3) for name, us in vars(timing).items()}


def limit_us(
    config: LatentMoEConfig, tp: int, tokens: int, dtype: str, machine: hardware.Hardware, mode: str = "graph"
) -> float:
    """max(bytes / bandwidth, FLOP / rate) plus one launch of `mode`, by the data sheet's peaks: nothing can be faster.

    Bytes: W_r [H/tp, L], routed [T, L], the slice of shared [T, H/tp] read and written. FLOP: the GEMM [T, L] x [L, H/tp].
    """
    columns, latent = config.hidden_size // tp, config.expert_input_size
    n_bytes = (columns * latent + tokens * (latent + 2 * columns)) * getattr(torch, dtype).itemsize
    return machine.ceiling_us(n_bytes, 2 * tokens * columns * latent, mode)


def with_limits(
    rows: Iterable[Mapping[str, Any]], config: LatentMoEConfig, tp: int, dtype: str, device: str
) -> list[dict[str, Any]]:
    """The rows, with `limit_us` beside the times of tails whose compute is one norm, one GEMM of this rank's columns and
    one sum; as they are for an unknown device."""
    name = hardware.of_device(device)
    if name is None:
        return [dict(row) for row in rows]
    machine = hardware.get(name)
    one_slice = {name for name, tail in TAILS.items() if tail.rows == "own" and tail.gemm_rows == "all"}
    return [
        {**row, "limit_us": round(limit_us(config, tp, row["tokens"], dtype, machine, row["mode"]), 3)}
        if row["tail"] in one_slice
        else dict(row)
        for row in rows
    ]


def choices(
    rows: Iterable[Mapping[str, Any]],
    config: LatentMoEConfig,
    tp: int,
    machine: Platform,
    communicator: str = TORCH,
) -> list[dict[str, Any]]:
    """One row per T and mode: tail, why, us, best, best_us, over_best_pct.

    `rows` have tail, tokens, mode and median_us; a choice that was not timed among them is left out. Judged fairly
    only by rows other than those of the recording that `auto` itself consults.
    """
    points: dict[tuple[int, str], dict[str, float]] = {}
    for row in rows:
        # Variants ("pipelined:chunks=3") are not tails that auto can choose.
        if row["tail"] in TAILS:
            points.setdefault((row["tokens"], row["mode"]), {})[row["tail"]] = row["median_us"]
    group = TensorParallel(rank=0, size=tp, communicator=communicator)
    chosen = [
        _choice(tokens, mode, times, config, group, machine) for (tokens, mode), times in points.items()
    ]
    return [choice for choice in chosen if choice is not None]


def _choice(tokens: int, mode: str, times: dict[str, float], config, group, machine) -> dict[str, Any] | None:
    tail, why = pick(tokens, config, group, machine, mode)
    if tail not in times:
        return None
    best = min(times, key=lambda name: times[name])
    return {
        "tokens": tokens, "mode": mode, "tail": tail, "why": why, "us": times[tail],
        "best": best, "best_us": times[best], "over_best_pct": 100 * (times[tail] / times[best] - 1),
    }  # fmt: skip


class ShapesOnly(TensorParallel):
    """Rank 0 of `size` ranks whose collectives move nothing: what is left is the tail's compute."""

    def all_reduce(self, x: torch.Tensor, async_op: bool = False) -> Any:
        """x as it is."""
        return Done() if async_op else x

    def reduce_scatter(self, x: torch.Tensor, out: torch.Tensor | None = None, async_op: bool = False) -> Any:
        """This rank's rows as they are; `out` is taken as filled."""
        if async_op:
            return Done()
        return x[self.columns(x.shape[0])] if out is None else out

    def all_gather(self, x: torch.Tensor, out: torch.Tensor | None = None, async_op: bool = False) -> Any:
        """`out` is taken as filled."""
        if async_op:
            return Done()
        return x.new_empty(x.shape[0] * self.size, *x.shape[1:]) if out is None else out
