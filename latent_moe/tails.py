"""The two tails of the change: `replicated` (before) and `column_parallel` (after).

T tokens, H hidden, L latent, tp ranks; W [H, L], W_r [H/tp, L].
"""

import torch

from latent_moe.errors import InputError
from latent_moe.parallel import TensorParallel
from latent_moe.tail_variants.aiter import check_kernels, norm_and_accumulate
from latent_moe.tail_variants.norm import apply_norm

ACCUMULATE = ("epilogue", "add")


def replicated(routed, shared, weight, norm, tp: TensorParallel) -> torch.Tensor:
    """l = AR(routed); h = norm(l); o = h W^T; s = AR(shared); out = o + s."""
    latent = tp.all_reduce(routed)  # [T, L]
    hidden = apply_norm(norm, latent)  # [T, L]
    projected = hidden @ weight.t()  # [T, H]: the same work on every rank
    return projected.add_(tp.all_reduce(shared))  # [T, H]


def column_parallel(
    routed, shared, weight, norm, tp: TensorParallel, accumulate: str = "epilogue", kernels: str = "torch"
) -> torch.Tensor:
    """l = AR(routed); h = norm(l); shared[:, r] += h W_r^T; out = AR(shared).

    Each rank adds its H/tp columns into its slice of the shared partial; the all-reduce that sums the shared
    partials sums zeros of the other ranks' columns too, so it gathers the slices: a sum is a gather.
    `accumulate`: "epilogue" lets the GEMM add (beta = 1), "add" is a matmul and an add. `kernels` "aiter" takes
    the norm and the GEMM from aiter (ROCm), which always adds separately. Raises InputError where that cannot run.
    """
    check_kernels(kernels)
    latent = tp.all_reduce(routed)  # [T, L]
    own = shared[:, tp.columns(shared.shape[1])]  # [T, H/tp], a view
    if kernels == "aiter":
        norm_and_accumulate(latent, norm, weight, own)
    else:
        accumulate_into(own, apply_norm(norm, latent), weight, accumulate)
    return tp.all_reduce(shared)  # [T, H]


def accumulate_into(own, hidden, weight, how: str = "epilogue") -> None:
    """own [T, H/tp] += hidden [T, L] @ weight[H/tp, L]^T, in place on the strided view.

    hipBLASLt's beta = 1 epilogue was found to fault at some row counts (vLLM later wrote the add instead), so the
    epilogue is an optimisation with a way out. Raises InputError for an unknown `how`.
    """
    if how not in ACCUMULATE:
        raise InputError(f"accumulate {how!r} is none of {', '.join(ACCUMULATE)}")
    if how == "epilogue":
        own.addmm_(hidden, weight.t())  # [T, L] @ [L, H/tp]
    else:
        own += hidden @ weight.t()  # [T, H/tp]
