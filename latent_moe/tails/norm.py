"""The latent RMSNorm: x / sqrt(mean(x^2) + eps) * weight, in fp32 as trained models do it.

T tokens, L latent.
"""

import torch
from torch import nn


class RMSNorm(nn.Module):
    """RMSNorm over the last dimension; weight [L], result in x's dtype."""

    def __init__(self, size: int, eps: float = 1e-5, dtype: torch.dtype | None = None):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size, dtype=dtype), requires_grad=False)
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [T, L] -> [T, L]."""
        return nn.functional.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


def apply_norm(norm, x: torch.Tensor) -> torch.Tensor:
    """norm(x), or x itself where the layer has no latent norm."""
    return x if norm is None else norm(x)
