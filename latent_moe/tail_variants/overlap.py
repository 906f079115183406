"""`overlap`: replicated, with the up-projection hidden under the shared experts' all-reduce.

T tokens, H hidden, L latent, tp ranks; W [H, L].
"""

import torch

from latent_moe.parallel import TensorParallel
from latent_moe.tail_variants.declaration import Tail
from latent_moe.tails import apply_norm


def overlap(
    routed: torch.Tensor, shared: torch.Tensor, weight: torch.Tensor, norm, tp: TensorParallel
) -> torch.Tensor:
    """l = AR(routed); h = norm(l); (h W^T) in parallel with AR(shared); add.

    The second all-reduce is issued before the GEMM and runs on the communicator's own stream.
    """
    latent = tp.all_reduce(routed)  # [T, L]
    pending = tp.all_reduce(shared, async_op=True)  # shared [T, H] once waited for
    hidden = apply_norm(norm, latent)  # [T, L]
    projected = hidden @ weight.t()  # [T, H]
    pending.wait()
    return projected.add_(shared)  # [T, H]


TAIL = Tail(
    "overlap", overlap, "all", "the whole up-projection under the shared experts' all-reduce", waits=True
)
