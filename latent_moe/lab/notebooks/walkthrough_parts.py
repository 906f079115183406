"""Times of one layer's parts on one rank of this machine; the beta = 1 epilogue against matmul and add.

T tokens, H hidden, L latent.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from latent_moe import platform
from latent_moe.lab.microbench.timing import summarise
from latent_moe.config import DEMO, LatentMoEConfig
from latent_moe.layer import LatentMoE
from latent_moe.weights import SeededWeights
from latent_moe.parallel import TensorParallel
from latent_moe.tails import ACCUMULATE, accumulate_into

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
    timing = summarise([_once_us(work) for _ in range(SAMPLES + 3)][3:])
    return {"median_us": timing.median_us, "p10_us": timing.p10_us, "p90_us": timing.p90_us}


def _once_us(work: Callable[[], Any]) -> float:
    platform.synchronize()
    start = time.perf_counter()
    work()
    platform.synchronize()
    return (time.perf_counter() - start) * 1e6


def _device() -> torch.device:
    return torch.device(platform.describe().device_type)
