"""aiter's kernels for column_parallel on ROCm: its tuned GEMM and its RMSNorm; nothing here imports aiter at once.

T tokens, N = H/tp columns of this rank, L latent. aiter's GEMM picks a kernel per shape from AMD's tuned tables and
has no accumulating epilogue, so the sum into the shared slice is an add of its own.
"""

from importlib.util import find_spec

import torch

from latent_moe.errors import InputError, unknown

KERNELS = ("torch", "aiter")


def check_kernels(kernels: str) -> None:
    """Raise InputError for an unknown choice, and for aiter where it cannot run."""
    if kernels not in KERNELS:
        raise unknown("kernels", kernels, KERNELS)
    reason = why_no_aiter() if kernels == "aiter" else None
    if reason is not None:
        raise InputError(f"kernels 'aiter': {reason}")


def why_no_aiter() -> str | None:
    """Why aiter's kernels cannot run here, or None."""
    if not torch.version.hip:
        return "aiter's kernels need ROCm, and this torch is built without it"
    if find_spec("aiter") is None:
        return "the package aiter (amd-aiter) is not installed"
    return None


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """RMSNorm of x [T, L] with weight [L] -> [T, L]."""
    from aiter.ops.rmsnorm import rmsnorm2d_fwd  # type: ignore[import-not-found]

    return rmsnorm2d_fwd(x, weight, eps)


def project(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """hidden [T, L] @ weight [N, L]^T -> [T, N], by the kernel tuned for this shape."""
    from aiter.tuned_gemm import tgemm  # type: ignore[import-not-found]

    return tgemm.mm(hidden, weight)
