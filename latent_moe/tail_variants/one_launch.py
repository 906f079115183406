"""`one_launch`: the whole tail in one kernel a rank, both sums through mapped peer memory.

T tokens, H hidden, L latent, tp ranks; W_r [H/tp, L].
"""

import torch

from latent_moe.fused_kernel import DTYPES, shelf
from latent_moe.fused_kernel.peer_launch import (
    launch_whole_tail,
    one_launch_plan,
    one_launch_sizes,
    one_launch_workspace,
)
from latent_moe.fused_kernel.tile_plan import bucket
from latent_moe.parallel import TensorParallel
from latent_moe.tail_variants.declaration import Tail
from latent_moe.tail_variants.early_weights import early_weights, refuse_peer_memory
from latent_moe.tail_variants.fused import fused
from latent_moe.tail_variants.mailbox import mailbox_for

MOST_TOKENS = 16  # profiles/h200_chain, emulated.csv


def one_launch(
    routed: torch.Tensor, shared: torch.Tensor, weight: torch.Tensor, norm, tp: TensorParallel
) -> torch.Tensor:
    """out = sum(shared) + norm(sum(routed)) W^T, written over `shared`; nothing of the library's collectives.

    As `early_weights` above 16 tokens, where more tiles would wait for each other in one launch, and as `fused` where no
    memory could be mapped. A gain that is not folded into W_r is multiplied
    into a copy of it at every call. A rank that is late for more than 5 s makes the results NaN, and `mailbox.check_peers` names it.
    """
    (tokens, latent), (n, _) = routed.shape, weight.shape
    capacity = bucket(tokens)
    if not 0 < tokens <= MOST_TOKENS:
        return early_weights(routed, shared, weight, norm, tp)
    plan = one_launch_plan(routed.device, tokens, n, latent)
    words, programs = one_launch_sizes(plan, capacity, tp.size, n, latent)
    box = mailbox_for(tp, ("one_launch", capacity, n, latent), words, programs)
    if box is None:
        return fused(routed, shared, weight, norm, tp)
    if norm is not None and norm.gain is not None:
        weight = (weight.float() * norm.gain.float()).to(weight.dtype)  # [H/tp, L]
    key = (shelf.place(routed.device), routed.device, "one_launch", plan, capacity, n)
    kept = shelf.take(key, lambda: one_launch_workspace(plan, capacity, n, routed.device))
    eps = None if norm is None else norm.eps
    launch_whole_tail(routed, shared, weight, eps, tp.rank, tp.size, box, kept, plan, capacity)
    shelf.put_back(key, kept)
    return shared  # [T, H]


TAIL = Tail(
    "one_launch",
    one_launch,
    "own",
    "the whole tail in one kernel, sums through peer memory",
    refuse_peer_memory,
    DTYPES,
    folds_gain=True,
)
