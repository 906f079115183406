"""How fast a sharded tail's compute could be on a known machine: its bytes once through memory, and one launch.

T tokens, H hidden, L latent, tp ranks.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from latent_moe.config import LatentMoEConfig
from latent_moe.lab.cost import hardware
from latent_moe.tail_variants.registry import TAILS


def limit_us(config: LatentMoEConfig, tp: int, tokens: int, dtype: str, machine: hardware.Hardware) -> float:
    """(W_r [H/tp, L] + routed [T, L] + the slice of shared [T, H/tp] read and written) / bandwidth + one launch.

    The bandwidth is what an elementwise kernel gets (`stream_us`), the launch is `kernel_us`.
    """
    columns, latent = config.hidden_size // tp, config.expert_input_size
    elements = columns * latent + tokens * (latent + 2 * columns)
    return machine.stream_us(elements * getattr(torch, dtype).itemsize) + machine.kernel_us


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
        {**row, "limit_us": round(limit_us(config, tp, row["tokens"], dtype, machine), 3)}
        if row["tail"] in one_slice
        else dict(row)
        for row in rows
    ]
