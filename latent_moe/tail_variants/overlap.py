"""`overlap`: replicated, with the up-projection hidden under the shared experts' all-reduce.

T tokens, H hidden, L latent, tp ranks; W [H, L].
"""

import torch

from latent_moe.parallel import TensorParallel
from latent_moe.tail_variants.norm import apply_norm


def overlap(routed, shared, weight, norm, tp: TensorParallel) -> torch.Tensor:
    """l = AR(routed); h = norm(l); (h W^T) in parallel with AR(shared); add.

    The second all-reduce is issued before the GEMM and runs on the communicator's own stream.
    """
    latent = tp.all_reduce(routed)  # [T, L]
    pending = tp.all_reduce(shared, async_op=True)
    hidden = apply_norm(norm, latent)  # [T, L]
    projected = hidden @ weight.t()  # [T, H]
    pending.wait()
    return projected.add_(shared)  # [T, H]
