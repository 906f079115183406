"""What notebooks 01 and 02 run: a tail step by step on real ranks, each refusal once, times of the parts of a layer.

T tokens, H hidden, L latent, tp ranks; W_r [H/tp, L].
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from latent_moe import platform
from latent_moe.config import DEMO, TINY, LatentMoEConfig
from latent_moe.lab.microbench.timing import summarise
from latent_moe.layer import LatentMoE
from latent_moe.parallel import TensorParallel, launch
from latent_moe.runner import ROCmLatentMoERunner
from latent_moe.tails import ACCUMULATE, accumulate_into, apply_norm
from latent_moe.verify.reference import inputs, relative_error
from latent_moe.weights import SeededWeights

# (what the step leaves, of which tensor, in words)
_STEPS = (
    ("routed partial", "routed", "each rank has its slice of every expert: partial sums, all different"),
    ("all-reduce(routed)", "routed", "every rank holds the whole sum"),
    ("RMSNorm", "routed", "the norm needs the whole sum: it cannot come before the all-reduce"),
    ("shared partial", "shared", "partial sums of the shared experts, all different"),
    ("shared[:, r] += h W_r^T", "shared", "each rank adds the routed output into its own H/tp columns"),
    ("all-reduce(shared)", "shared", "one sum adds the shared partials and gathers the slices"),
)


@dataclass(frozen=True)
class Walk:
    """A tail taken apart. `steps`: {"name", "what", "about", "values" [tp, T, columns]}; `written` [tp, H] is the
    largest change over the tokens that each rank made to its shared partial; `rel_err_replicated` compares the result
    with the replicated tail's on the same partial sums; `issued` lists one rank's collectives of both tails."""

    steps: list[dict[str, Any]]
    written: np.ndarray
    rel_err_replicated: float
    issued: dict[str, list[tuple[str, int]]]


def walk(tp: int = 8, config: LatentMoEConfig = TINY, tokens: int = 8, seed: int = 0) -> Walk:
    """Run the sharded tail on `tp` real ranks, step by step.

    Raises InputError for a tp that does not divide the layer's sizes or cannot be launched.
    """
    config.check_tp(tp)
    ranks = launch(_walk_of_rank, tp, config, tokens, seed)
    stacked = [np.stack([rank["values"][i] for rank in ranks]) for i in range(len(_STEPS))]
    steps = [
        {"name": name, "what": what, "about": about, "values": values}
        for (name, what, about), values in zip(_STEPS, stacked, strict=True)
    ]
    written = np.abs(stacked[4] - stacked[3]).max(axis=1)  # [tp, H]
    error = max(rank["rel_err"] for rank in ranks)
    return Walk(steps, written, error, ranks[0]["issued"])


def _walk_of_rank(tp: TensorParallel, config: LatentMoEConfig, tokens: int, seed: int) -> dict[str, Any]:
    weights = SeededWeights(config, seed)
    layer = LatentMoE(config, tp, weights, runner_cls=ROCmLatentMoERunner, runner_args={"tail": "replicated"})
    x = inputs(config, weights, tokens, seed, [torch.float32]).to(tp.device)
    routed, shared = layer.partials(x)  # [T, L], [T, H]
    assert shared is not None  # the walk's layers have shared experts
    before = (routed.clone(), shared.clone())
    values, issued = _stepped(tp, layer.runner.routed_output_transform, routed, shared)
    tp.issued.clear()
    replicated = layer.runner.finish(*before)
    error = relative_error(torch.as_tensor(values[-1]), replicated.cpu())
    return {
        "values": values,
        "rel_err": error,
        "issued": {"column_parallel": issued, "replicated": _issued(tp)},
    }


def _stepped(tp: TensorParallel, transform, routed, shared) -> tuple[list[np.ndarray], list]:
    tp.issued.clear()
    values = [_kept(routed)]
    latent = tp.all_reduce(routed)  # [T, L]
    values.append(_kept(latent))
    hidden = apply_norm(transform.norm, latent)  # [T, L]
    values += [_kept(hidden), _kept(shared)]
    own = shared[:, tp.columns(shared.shape[1])]  # [T, H/tp], a view
    accumulate_into(own, hidden, transform.rows("own"))
    values.append(_kept(shared))
    values.append(_kept(tp.all_reduce(shared)))  # [T, H]
    return values, _issued(tp)


def _kept(x: torch.Tensor) -> np.ndarray:
    return x.detach().float().cpu().numpy().copy()


def _issued(tp: TensorParallel) -> list[tuple[str, int]]:
    return [(one.kind, one.bytes) for one in tp.issued]


REFUSAL_TOKENS, SEED = 8, 5
# (what is broken, config, runner arguments, tp)
CASES: tuple[tuple[str, LatentMoEConfig, dict[str, Any], int], ...] = (
    ("nothing", TINY, {}, 2),
    ("not latent", TINY.replace(latent_size=None), {}, 2),
    # The experts' latent is as wide as the hidden size: without the up-projection the sums still add.
    ("up-projection taken out", TINY.replace(latent_size=TINY.hidden_size), {}, 2),
    ("one rank", TINY, {}, 1),
    ("H = 63", TINY.replace(hidden_size=63), {}, 2),
    ("no shared experts", TINY.replace(shared_width=0), {}, 2),
    ("sequence parallel", TINY.replace(sequence_parallel=True), {}, 2),
    (
        "factor 2.5 at the runner",
        TINY.replace(routed_scaling_factor=2.5, scale_routed_output=True),
        {},
        2,
    ),
    ("reduced by the combine kernel", TINY, {"output_is_reduced": True}, 2),
)


def refusals() -> list[dict[str, Any]]:
    """One dict per case: `broken`, `ran`, `code`, `reason`, `same_as_baseline` (bitwise equal to MoERunner's result).

    "nothing" is the control: there the sharded tail runs, equal up to rounding only.
    """
    found = []
    for tp in (2, 1):
        cases = [case[:3] for case in CASES if case[3] == tp]
        found += launch(_refusals_of_rank, tp, cases)[0]
    order = [case[0] for case in CASES]
    return sorted(found, key=lambda row: order.index(row["broken"]))


def _refusals_of_rank(tp: TensorParallel, cases) -> list[dict[str, Any]]:
    return [_case(tp, *case) for case in cases]


def _case(tp: TensorParallel, broken: str, config: LatentMoEConfig, arguments) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(SEED)
    x = torch.randn(REFUSAL_TOKENS, config.hidden_size, generator=generator).to(tp.device)
    x = x[tp.columns(REFUSAL_TOKENS)] if config.sequence_parallel else x
    weights = SeededWeights(config, SEED)
    layer = LatentMoE(config, tp, weights, runner_cls=ROCmLatentMoERunner, runner_args=arguments)
    baseline = LatentMoE(config, tp, weights, runner_args=arguments)
    if broken == "up-projection taken out":
        for one in (layer, baseline):
            one.runner.routed_output_transform = None
    same = torch.equal(layer(x), baseline(x))
    last = layer.runner.last
    return {
        "broken": broken,
        "ran": last.tail,
        "code": last.refusal.code if last.refusal else "",
        "reason": last.reason or "",
        "same_as_baseline": same,
    }


SAMPLES = 15


@torch.no_grad()
def part_times(config: LatentMoEConfig = DEMO, tokens: int = 64) -> list[dict[str, Any]]:
    """Rows of {"part", "median_us", "p10_us", "p90_us"} for one layer at tp = 1 on this machine's device."""
    device = _device()
    layer = LatentMoE(config, TensorParallel.single(device), SeededWeights(config))
    runner: Any = layer.runner
    x = torch.randn(tokens, config.hidden_size, device=device)
    chosen, latent = runner.router(layer.gate(x)), runner.routed_input_transform(x)
    routed, shared = runner.partials(x, layer.gate(x))
    work: dict[str, Callable[[], Any]] = {
        "gate": lambda: runner.router(layer.gate(x)),
        "down-projection": lambda: runner.routed_input_transform(x),
        "routed experts": lambda: runner.experts(latent, *chosen),
        "shared experts": lambda: runner.shared_experts(x),
        "tail": lambda: runner.finish(routed.clone(), shared.clone()),
    }
    return [{"part": name, **_row(fn)} for name, fn in work.items()]


@torch.no_grad()
def accumulate_times(
    tokens: tuple[int, ...] = (1, 16, 256), columns: int = 896, latent: int = 3584
) -> list[dict[str, Any]]:
    """The GEMM's own add against a matmul and an add: {"how", "tokens", "median_us", ..., "rel_diff"}.

    Shapes of one rank of Kimi-K3's up-projection at tp = 8; `rel_diff` is norm2(epilogue - add)/norm2(add).
    """
    device = _device()
    weight = torch.randn(columns, latent, device=device) / latent**0.5
    rows = []
    for t in tokens:
        hidden, shared = torch.randn(t, latent, device=device), torch.randn(t, 8 * columns, device=device)
        results = {how: shared.clone()[:, :columns] for how in ACCUMULATE}
        for how, own in results.items():
            accumulate_into(own, hidden, weight, how)
        apart = (results["epilogue"] - results["add"]).norm() / results["add"].norm()
        for how, own in results.items():
            timed = _row(partial(accumulate_into, own, hidden, weight, how))
            rows.append({"how": how, "tokens": t, **timed, "rel_diff": float(apart)})
    return rows


def _row(work: Callable[[], Any]) -> dict[str, float]:
    return vars(summarise([_once_us(work) for _ in range(SAMPLES + 3)][3:]))


def _once_us(work: Callable[[], Any]) -> float:
    platform.synchronize()
    start = time.perf_counter()
    work()
    platform.synchronize()
    return (time.perf_counter() - start) * 1e6


def _device() -> torch.device:
    return torch.device(platform.describe().device_type)
