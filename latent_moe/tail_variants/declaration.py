"""What a tail's file declares about it, for the runner, the server's plugin and the instruments alike.

T tokens, H hidden, L latent, tp ranks; W [H, L], W_r [H/tp, L].
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

# routed, shared, weight, norm, tp: what every tail's function takes.
_COMMON = 5


@dataclass(frozen=True)
class Tail:
    """A tail by name; `function(routed [T, L], shared [T, H], weight, norm, tp, **options)` -> out [T, H].

    `rows` says which rows of W the function takes: "all" or this rank's "own". `refuse(config, tp_size, tokens)`
    is the tail's own condition beyond those of every sharded tail: why it cannot run there, or None. `dtypes`: those
    the function takes, None for any. `folds_gain`: the tail is at its best with the norm's gain folded into W.
    `traceable`: torch.compile may look into it; one that decides by T, waits on handles or changes streams it may not.
    `gemm_rows`: whose tokens its GEMM takes, "all", this rank's "own" T/tp, or "chunks" of several lengths.
    `waits`: it waits on handles of collectives, which vLLM's communicators do not give.
    """

    name: str
    function: Callable[..., torch.Tensor]
    rows: str
    summary: str
    refuse: Callable[[Any, int, int], str | None] = lambda *_: None
    dtypes: tuple[torch.dtype, ...] | None = None
    folds_gain: bool = False
    traceable: bool = False
    gemm_rows: str = "all"
    waits: bool = False

    def takes(self, dtype: torch.dtype | None) -> bool:
        """Whether the function takes partials of this dtype; None asks about no dtype in particular."""
        return self.dtypes is None or dtype is None or dtype in self.dtypes

    @cached_property
    def options(self) -> tuple[str, ...]:
        """The names of the function's own options, such as chunks."""
        return tuple(inspect.signature(self.function).parameters)[_COMMON:]

    def gemm_shape(self, config: Any, tokens: int, tp_size: int) -> tuple[int, int, int] | None:
        """(M, N, K) of the up-projection's GEMM on a rank, None where it runs several of different lengths."""
        if self.gemm_rows == "chunks":
            return None
        rows = -(-tokens // tp_size) if self.gemm_rows == "own" else tokens
        columns = config.hidden_size // (tp_size if self.rows == "own" else 1)
        return rows, columns, config.expert_input_size
