"""`row_parallel`: each rank up-projects T/tp rows of the reduced latent; for engines that keep their all-reduces.

T tokens, H hidden, L latent, tp ranks; W [H, L]. T' is T padded to a multiple of tp.
"""

import torch

from latent_moe.parallel import TensorParallel
from latent_moe.tail_variants.declaration import Tail
from latent_moe.tail_variants.token_parallel import padded_rows
from latent_moe.tails import apply_norm


def row_parallel(
    routed: torch.Tensor, shared: torch.Tensor, weight: torch.Tensor, norm, tp: TensorParallel
) -> torch.Tensor:
    """l = AR(routed); s = AR(shared); own T/tp rows: norm(l) W^T; AG; add.

    1/tp of the norm's and the GEMM's work with the whole W, at the price of an all-gather of [T, H]. sglang ends such
    layers in this form.
    """
    latent = padded_rows(tp.all_reduce(routed), tp.size)  # [T', L]
    own = latent[tp.columns(latent.shape[0])]  # [T'/tp, L]
    projected = apply_norm(norm, own) @ weight.t()  # [T'/tp, H]
    gathered = tp.all_gather(projected)  # [T', H]
    return gathered[: shared.shape[0]].add_(tp.all_reduce(shared))  # [T, H]


TAIL = Tail(
    "row_parallel",
    row_parallel,
    "all",
    "each rank T/tp rows of the up-projection; an all-gather stitches",
    gemm_rows="own",
)
