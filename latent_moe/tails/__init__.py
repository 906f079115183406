"""The tails of a latent MoE layer: what happens after the experts, as plain functions.

T tokens, H hidden, L latent, tp ranks. On each rank `routed` [T, L] and `shared` [T, H] are partial sums: the
ranks' tensors add up to the experts' outputs. W is the up-projection [H, L], W_r its H/tp rows of rank r.
Every tail returns the same out [T, H] on every rank, up to rounding; `routed` and `shared` may be overwritten.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from latent_moe.tails.basic import column_parallel, replicated
from latent_moe.tails.norm import RMSNorm, apply_norm

__all__ = ["TAILS", "RMSNorm", "Tail", "apply_norm", "column_parallel", "replicated"]


@dataclass(frozen=True)
class Tail:
    """A tail by name. `rows` says which rows of W the function takes: "all" or this rank's "own"."""

    name: str
    function: Callable[..., torch.Tensor]
    rows: str
    summary: str


TAILS = {
    tail.name: tail
    for tail in (
        Tail("replicated", replicated, "all", "every rank does the whole up-projection"),
        Tail("column_parallel", column_parallel, "own", "each rank its columns; the all-reduce stitches"),
    )
}
