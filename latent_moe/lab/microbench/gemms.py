"""Notebook 03's measurements: the up-projection's GEMM, whole and sharded, at a list of T, and its ceiling.

T tokens, H hidden, L latent, N columns (H, or H/tp sharded).
"""

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from latent_moe.config import KIMI_K3, LatentMoEConfig
from latent_moe.errors import unknown
from latent_moe.lab.microbench.calibrate import Calibration
from latent_moe.lab.microbench.timing import summarise
from latent_moe.platform import describe, synchronize

SAMPLES = 7
_WIDTH = {"float32": 4, "bfloat16": 2, "float16": 2}


def here(kind: str) -> tuple[LatentMoEConfig, int, tuple[int, ...]]:
    """(config, tp, list of T) that this kind of machine times in seconds: Kimi-K3's sizes, fewer T on a CPU."""
    tokens = (1, 4, 16, 64, 256) if kind == "cpu" else tuple(4**i for i in range(8))
    return KIMI_K3, 8, tokens


def profiled(kind: str) -> tuple[int, ...]:
    """The T of the recording."""
    return (1, 16, 256) if kind == "cpu" else (1, 16, 256, 4096, 16384)


def dtype(kind: str) -> str:
    """float32 on a CPU, where bf16 may be emulated."""
    return "float32" if kind == "cpu" else "bfloat16"


def ceilings(
    config: LatentMoEConfig, tp: int, tokens: Iterable[int], machine: Calibration
) -> list[dict[str, Any]]:
    """max(FLOP/rate, bytes/bandwidth) of both GEMMs: {"tail", "tokens", "columns", "ceiling_us", "bound"}."""
    width = _WIDTH[machine.gemm_dtype]
    rows = []
    for tail, n in _columns(config, tp):
        for t in tokens:
            k = config.expert_input_size
            flop_us = 2 * t * n * k / (machine.gemm_tflops * 1e6)
            bytes_us = width * (n * k + t * (n + k)) / (machine.copy_tb_per_s * 1e6)
            bound = "arithmetic" if flop_us > bytes_us else "bytes"
            rows.append(
                {
                    "tail": tail,
                    "tokens": t,
                    "columns": n,
                    "ceiling_us": max(flop_us, bytes_us),
                    "bound": bound,
                }
            )
    return rows


def _columns(config: LatentMoEConfig, tp: int):
    return (("replicated", config.hidden_size), ("column_parallel", config.hidden_size // tp))


@torch.no_grad()
def times(config: LatentMoEConfig, tp: int, tokens: Iterable[int]) -> list[dict[str, Any]]:
    """Medians of the GEMM alone on this machine: {"tail", "tokens", "median_us", "p10_us", "p90_us"}."""
    machine = describe()
    kind = getattr(torch, dtype(machine.kind))
    rows = []
    for tail, n in _columns(config, tp):
        weight = torch.randn(n, config.expert_input_size, device=machine.device_type).to(kind)  # [N, L]
        for t in tokens:
            x = torch.randn(t, config.expert_input_size, device=machine.device_type).to(kind)  # [T, L]
            timing = summarise([_once_us(x, weight) for _ in range(SAMPLES + 2)][2:])
            rows.append({"tail": tail, "tokens": t, **vars(timing)})
    return rows


def _once_us(x: torch.Tensor, weight: torch.Tensor) -> float:
    synchronize()
    start = time.perf_counter()
    x @ weight.t()  # [T, N]
    synchronize()
    return (time.perf_counter() - start) * 1e6


def arm(recording: str | Path, tail: str) -> Path:
    """The folder of one tail in a recording made by `latent-moe profile`. Raises InputError naming what is there."""
    folder = Path(recording)
    if (folder / tail).is_dir():
        return folder / tail
    recorded = sorted(path.name for path in folder.glob("*") if path.is_dir())
    raise unknown(f"tail in {folder}:", tail, recorded)
