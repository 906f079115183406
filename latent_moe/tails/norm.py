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

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [T, L] -> [T, L]; the sum of squares never rounds to a narrow type."""
        if x.dtype == self.weight.dtype:
            return nn.functional.rms_norm(x, (x.shape[-1],), self.weight, self.eps)
        wide = x.float()
        return nn.functional.rms_norm(wide, (x.shape[-1],), self.weight.float(), self.eps).to(x.dtype)


def apply_norm(norm, x: torch.Tensor) -> torch.Tensor:
    """norm(x), or x itself where the layer has no latent norm."""
    return x if norm is None else norm(x)
