"""`joint`: both partial sums in one all-reduce, then the whole up-projection on every rank; what other engines run.

T tokens, H hidden, L latent, tp ranks; W [H, L].
"""

import torch

from latent_moe.parallel import TensorParallel
from latent_moe.tail_variants.declaration import Tail
from latent_moe.tails import apply_norm


def joint(
    routed: torch.Tensor, shared: torch.Tensor, weight: torch.Tensor, norm, tp: TensorParallel
) -> torch.Tensor:
    """(l, s) = AR of [routed, shared] in one buffer; h = norm(l); out = s + h W^T.

    The shared experts' sum needs no norm and can be reduced as early as the latent: one collective less, for a copy of
    T (L + H) elements. It wins where a collective costs more than the GEMM that the sharded tails save.
    """
    tokens, latent_size = routed.shape
    both = tp.all_reduce(torch.cat((routed.flatten(), shared.flatten())))  # [T L + T H]
    latent = both[: tokens * latent_size].view(tokens, latent_size)  # [T, L]
    summed = both[tokens * latent_size :].view(shared.shape)  # [T, H]
    hidden = apply_norm(norm, latent)  # [T, L]
    return summed.addmm_(hidden, weight.t())  # [T, H]


TAIL = Tail(
    "joint", joint, "all", "one all-reduce of both partial sums, the whole up-projection", traceable=True
)
