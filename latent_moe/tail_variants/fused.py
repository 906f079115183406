"""`fused`: column_parallel whose norm, GEMM and accumulate are one Triton launch.

T tokens, H hidden, L latent, tp ranks; W_r [H/tp, L].
"""

import torch

from latent_moe.fused_kernel import DTYPES, norm_project_accumulate, why_not
from latent_moe.parallel import TensorParallel
from latent_moe.tail_variants.declaration import Tail


def fused(
    routed: torch.Tensor, shared: torch.Tensor, weight: torch.Tensor, norm, tp: TensorParallel
) -> torch.Tensor:
    """l = AR(routed); shared[:, r] += norm(l) W_r^T in one launch; out = AR(shared).

    A norm whose gain is folded into W_r (`fold_gain`) makes the launch faster.
    """
    latent = tp.all_reduce(routed)  # [T, L]
    own = shared[:, tp.columns(shared.shape[1])]  # [T, H/tp], a view
    gain, eps = (None, None) if norm is None else (norm.gain, norm.eps)
    norm_project_accumulate(latent, gain, eps, weight, own)
    return tp.all_reduce(shared)  # [T, H]


def _refuse(config, _tp_size: int, _tokens: int) -> str | None:
    return why_not(config.hidden_size, config.latent_size or config.hidden_size)


TAIL = Tail("fused", fused, "own", "column_parallel with one Triton launch", _refuse, DTYPES, folds_gain=True)
