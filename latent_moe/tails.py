"""The change in two functions: `replicated` is how a latent MoE layer ended before, `column_parallel` how it ends since.

T tokens, H hidden, L latent, tp ranks; r this rank. On each rank `routed` [T, L] and `shared` [T, H] are partial sums:
the ranks' tensors add up to the experts' outputs. W is the up-projection [H, L], W_r its H/tp rows of rank r. A tail
returns the same out [T, H] on every rank, up to rounding; it may overwrite `routed` and `shared`.
"""

import torch
from torch import nn

from latent_moe.errors import unknown
from latent_moe.parallel import TensorParallel
from latent_moe.tail_variants.aiter import check_kernels, project, rms_norm

ACCUMULATE = ("epilogue", "add")


def replicated(
    routed: torch.Tensor, shared: torch.Tensor, weight: torch.Tensor, norm, tp: TensorParallel
) -> torch.Tensor:
    """l = AR(routed); h = norm(l); o = h W^T; s = AR(shared); out = o + s. `weight` is W [H, L]."""
    latent = tp.all_reduce(routed)  # [T, L]
    hidden = apply_norm(norm, latent)  # [T, L]
    projected = hidden @ weight.t()  # [T, H]: the same work on every rank
    summed = tp.all_reduce(shared)  # [T, H]
    out = projected.add_(summed)  # [T, H]
    return out


def column_parallel(
    routed: torch.Tensor,
    shared: torch.Tensor,
    weight: torch.Tensor,
    norm,
    tp: TensorParallel,
    accumulate: str = "epilogue",
    kernels: str = "torch",
) -> torch.Tensor:
    """l = AR(routed); h = norm(l); shared[:, r] += h W_r^T; out = AR(shared). `weight` is W_r [H/tp, L].

    Each rank adds its H/tp columns into its slice of the shared partial. The all-reduce that sums the shared partials
    sums zeros of the other ranks' columns too, so it gathers the slices: a sum is a gather. `accumulate`: "epilogue"
    lets the GEMM add (beta = 1), "add" is a matmul and an add. `kernels`: whose norm and GEMM, "torch", or "aiter" on
    ROCm, which always adds separately. Raises InputError for an unknown choice and for one that cannot run here.
    """
    latent = tp.all_reduce(routed)  # [T, L]
    hidden = apply_norm(norm, latent, kernels)  # [T, L]
    own = shared[:, tp.columns(shared.shape[1])]  # [T, H/tp], a view
    accumulate_into(own, hidden, weight, accumulate, kernels)
    out = tp.all_reduce(shared)  # [T, H]
    return out


def accumulate_into(
    own: torch.Tensor,
    hidden: torch.Tensor,
    weight: torch.Tensor,
    accumulate: str = "epilogue",
    kernels: str = "torch",
) -> None:
    """own [T, H/tp] += hidden [T, L] @ weight [H/tp, L]^T, in place on the strided view.

    hipBLASLt's beta = 1 epilogue was found to fault at some row counts (vLLM later wrote the add instead), so the
    epilogue is an optimisation with a way out. Raises InputError for an unknown `accumulate` or `kernels`.
    """
    if accumulate not in ACCUMULATE:
        raise unknown("accumulate", accumulate, ACCUMULATE)
    if kernels != "torch":
        check_kernels(kernels)
        own += project(hidden, weight)  # [T, H/tp]
    elif accumulate == "epilogue":
        own.addmm_(hidden, weight.t())  # [T, L] @ [L, H/tp]
    else:
        own += hidden @ weight.t()  # [T, H/tp]


class RMSNorm(nn.Module):
    """The latent norm: x / sqrt(mean(x^2) + eps) * weight over the last dimension, computed in fp32 as trained models do.

    weight [L]; the result has x's dtype. Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.
    """

    def __init__(self, size: int, eps: float = 1e-5, dtype: torch.dtype | None = None):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size, dtype=dtype), requires_grad=False)  # [L]
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
        wide = x.float()  # [T, L]
        return nn.functional.rms_norm(wide, (x.shape[-1],), self.weight.float(), self.eps).to(x.dtype)


def apply_norm(norm, x: torch.Tensor, kernels: str = "torch") -> torch.Tensor:
    """norm(x [T, L]) -> [T, L] by torch's or aiter's kernel; x itself where the layer has no latent norm (None)."""
    if norm is None or kernels == "torch":
        return x if norm is None else norm(x)
    check_kernels(kernels)
    return rms_norm(x, norm.weight, norm.eps)


def fold_gain(weight: torch.Tensor, norm) -> None:
    """Multiply the norm's gain into the columns of W [rows, L], in place and once; the norm's own becomes ones.

    RMSNorm(x; g) W^T = RMSNorm(x; 1) (W diag(g))^T: the same tail with one multiplication less for every token. `norm`
    has `.weight` [L] and `.folded`; None: nothing to fold. The product is rounded to W's dtype once, as the norm's
    output is otherwise.
    """
    if norm is not None and not norm.folded:
        weight.copy_(weight.float() * norm.weight.float())
        norm.weight.data.fill_(1)
        norm.folded = True
