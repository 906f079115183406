"""The two projections around the routed experts: hidden to latent before them, latent to hidden after them.

T tokens, H hidden, L latent, tp ranks.
"""

import torch
from torch import nn

from latent_moe.parallel import TensorParallel
from latent_moe.tail_variants.norm import fold_gain


class InputTransform(nn.Module):
    """The latent down-projection, whole on every rank: x [T, H] -> [T, L]."""

    def __init__(self, weight: torch.Tensor):
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)  # [L, H]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [T, H] -> [T, L]."""
        return torch.einsum("th,lh->tl", x, self.weight)


class OutputTransform(nn.Module):
    """The latent norm and the up-projection. The tail applies them: what it needs are the norm and rows of W.

    `row_sharded`: `weight` holds only this rank's H/tp rows, 1/tp of the memory.
    """

    def __init__(self, weight: torch.Tensor, norm: nn.Module | None, tp: TensorParallel, row_sharded: bool):
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)  # [H, L] or [H/tp, L]
        self.norm, self.tp, self.row_sharded = norm, tp, row_sharded

    def fold_gain(self) -> None:
        """The norm's gain into the columns of W, once; in place."""
        fold_gain(self.weight.data, self.norm)

    def rows(self, which: str) -> torch.Tensor:
        """W [H, L] for "all", W_r [H/tp, L] for "own" (a view when the whole is there).

        When only the own rows are there, "all" gathers the others: correct, but a collective of H * L elements, so
        a runner keeps all rows wherever it may need them.
        """
        if which == "own":
            return self.weight if self.row_sharded else self.weight[self.tp.columns(self.weight.shape[0])]
        return self.tp.all_gather(self.weight.data) if self.row_sharded else self.weight
