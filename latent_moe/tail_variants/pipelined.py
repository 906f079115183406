"""`pipelined`: column_parallel in chunks of tokens, one chunk's all-reduce under the next one's GEMM.

T tokens, H hidden, L latent, tp ranks; W_r [H/tp, L].
"""

import torch

from latent_moe.parallel import TensorParallel
from latent_moe.tail_variants.norm import apply_norm
from latent_moe.tail_variants.pieces import pieces
from latent_moe.tails import accumulate_into


def pipelined(
    routed, shared, weight, norm, tp: TensorParallel, accumulate: str = "epilogue", chunks: int = 2
) -> torch.Tensor:
    """column_parallel on `chunks` pieces of T with asynchronous all-reduces, those of the latents first."""
    rows = pieces(routed.shape[0], chunks)
    latents = [tp.all_reduce(routed[piece], async_op=True) for piece in rows]
    columns = tp.columns(shared.shape[1])
    sums = []
    for piece, latent in zip(rows, latents, strict=True):
        latent.wait()
        hidden = apply_norm(norm, routed[piece])  # [T/chunks, L]
        accumulate_into(shared[piece, columns], hidden, weight, accumulate)
        sums.append(tp.all_reduce(shared[piece], async_op=True))
    for pending in sums:
        pending.wait()
    return shared  # [T, H]
