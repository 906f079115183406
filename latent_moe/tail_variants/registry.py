"""The tails of a latent MoE layer: what happens after the experts, as plain functions.

T tokens, H hidden, L latent, tp ranks. On each rank `routed` [T, L] and `shared` [T, H] are partial sums: the
ranks' tensors add up to the experts' outputs. W is the up-projection [H, L], W_r its H/tp rows of rank r.
Every tail returns the same out [T, H] on every rank, up to rounding; `routed` and `shared` may be overwritten.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from latent_moe.tail_variants.fused import FUSED_DTYPES, fused, refuse_fused
from latent_moe.tail_variants.norm import RMSNorm, apply_norm, fold_gain
from latent_moe.tail_variants.overlap import overlap
from latent_moe.tail_variants.pipelined import pipelined
from latent_moe.tail_variants.token_parallel import token_parallel
from latent_moe.tails import column_parallel, replicated


def never_refuses(config: Any, tp_size: int, tokens: int) -> str | None:
    """For tails with no condition of their own."""
    return None


__all__ = [
    "TAILS",
    "RMSNorm",
    "Tail",
    "apply_norm",
    "column_parallel",
    "fold_gain",
    "fused",
    "overlap",
    "pipelined",
    "replicated",
    "token_parallel",
]


@dataclass(frozen=True)
class Tail:
    """A tail by name.

    `rows` says which rows of W the function takes: "all" or this rank's "own". `refuse(config, tp_size, tokens)`
    is the tail's own condition beyond those of every sharded tail: why it cannot run there, or None. `dtypes`: those
    the function takes, None for any. `folds_gain`: the tail is at its best with the norm's gain folded into W.
    `traceable`: torch.compile may look into it; one that decides by T, waits on handles or changes streams it may not.
    """

    name: str
    function: Callable[..., torch.Tensor]
    rows: str
    summary: str
    refuse: Callable[[Any, int, int], str | None] = never_refuses
    dtypes: tuple[torch.dtype, ...] | None = None
    folds_gain: bool = False
    traceable: bool = False

    def takes(self, dtype: torch.dtype | None) -> bool:
        """Whether the function takes partials of this dtype; None asks about no dtype in particular."""
        return self.dtypes is None or dtype is None or dtype in self.dtypes


TAILS = {
    tail.name: tail
    for tail in (
        Tail("replicated", replicated, "all", "every rank does the whole up-projection", traceable=True),
        Tail(
            "column_parallel",
            column_parallel,
            "own",
            "each rank its columns; the all-reduce stitches",
            traceable=True,
        ),
        Tail("overlap", overlap, "all", "the whole up-projection under the shared experts' all-reduce"),
        Tail(
            "token_parallel", token_parallel, "all", "each rank its tokens: reduce-scatter, end, all-gather"
        ),
        Tail("pipelined", pipelined, "own", "column_parallel in chunks, all-reduces under GEMMs"),
        Tail(
            "fused", fused, "own", "column_parallel with one Triton launch", refuse_fused, FUSED_DTYPES, True
        ),
    )
}
