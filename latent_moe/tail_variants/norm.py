"""The latent RMSNorm: x / sqrt(mean(x^2) + eps) * weight, computed in fp32 as trained models do it.

T tokens, L latent.
"""

import torch
from torch import nn


class RMSNorm(nn.Module):
    """RMSNorm over the last dimension; weight [L], result in x's dtype.

    Source of the formula: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.
    """

    def __init__(self, size: int, eps: float = 1e-5, dtype: torch.dtype | None = None):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size, dtype=dtype), requires_grad=False)
        self.eps = eps
        self.folded = False

    @property
    def gain(self) -> torch.Tensor | None:
        """The weight [L] still to be multiplied in, or None where it is folded into the up-projection."""
        return None if self.folded else self.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [T, L] -> [T, L]; the sum of squares never rounds to a narrow type."""
        if x.dtype == self.weight.dtype:
            return nn.functional.rms_norm(x, (x.shape[-1],), self.weight, self.eps)
        wide = x.float()
        return nn.functional.rms_norm(wide, (x.shape[-1],), self.weight.float(), self.eps).to(x.dtype)


def fold_gain(weight: torch.Tensor, norm) -> None:
    """Multiply the norm's gain into the columns of W [rows, L], in place and once; the norm's own becomes ones.

    RMSNorm(x; g) W^T = RMSNorm(x; 1) (W diag(g))^T: the same tail with one multiplication less for every token. `norm`
    has `.weight` [L] and `.folded`; None: nothing to fold. The product is rounded to W's dtype once, as the norm's
    output is otherwise.
    """
    if norm is None or norm.folded:
        return
    weight.copy_(weight.float() * norm.weight.float())
    norm.weight.data.fill_(1)
    norm.folded = True


def apply_norm(norm, x: torch.Tensor) -> torch.Tensor:
    """norm(x), or x itself where the layer has no latent norm."""
    return x if norm is None else norm(x)
