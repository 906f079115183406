"""`pipelined`: column_parallel in chunks of tokens, one chunk's all-reduce under the next one's GEMM.

T tokens, H hidden, L latent, tp ranks; W_r [H/tp, L].
"""

import torch

from latent_moe.errors import InputError
from latent_moe.parallel import TensorParallel
from latent_moe.tail_variants.declaration import Tail
from latent_moe.tails import accumulate_into, apply_norm


def pipelined(
    routed: torch.Tensor,
    shared: torch.Tensor,
    weight: torch.Tensor,
    norm,
    tp: TensorParallel,
    accumulate: str = "epilogue",
    chunks: int = 2,
) -> torch.Tensor:
    """column_parallel on `chunks` pieces of T with asynchronous all-reduces, those of the latents first."""
    rows = pieces(routed.shape[0], chunks)
    latents = [tp.all_reduce(routed[piece], async_op=True) for piece in rows]
    columns = tp.columns(shared.shape[1])
    sums = []
    for piece, latent in zip(rows, latents, strict=True):
        latent.wait()
        hidden = apply_norm(norm, routed[piece])  # [T/chunks, L]
        accumulate_into(shared[piece, columns], hidden, weight, accumulate)  # [T/chunks, H/tp]
        sums.append(tp.all_reduce(shared[piece], async_op=True))
    for pending in sums:
        pending.wait()
    return shared  # [T, H]


def pieces(tokens: int, count: int, multiple: int = 1) -> list[slice]:
    """At most `count` consecutive row slices of nearly equal length, each but the last a multiple of `multiple`.

    Raises InputError unless count is at least 1.
    """
    if count < 1:
        raise InputError(f"chunks {count}: at least 1 is needed")
    step = -(-tokens // (count * multiple)) * multiple
    return [slice(start, min(start + step, tokens)) for start in range(0, tokens, max(step, 1))]


TAIL = Tail(
    "pipelined",
    pipelined,
    "own",
    "column_parallel in chunks, all-reduces under GEMMs",
    gemm_rows="chunks",
    waits=True,
)
