"""`token_parallel`: each rank ends T/tp tokens: norm, up-projection and add shrink, half the latent bytes travel.

T tokens, H hidden, L latent, tp ranks; W [H, L].
"""

import torch

from latent_moe.parallel import TensorParallel
from latent_moe.tail_variants.norm import apply_norm
from latent_moe.tail_variants.peer_copy import COPY_FROM, exchange_for
from latent_moe.tail_variants.pieces import padded_rows, pieces
from latent_moe.tail_variants.token_parallel_copy import end_tokens


def token_parallel(
    routed, shared, weight, norm, tp: TensorParallel, chunks: int = 0, exchange: str = "auto"
) -> torch.Tensor:
    """l = RS(routed); s = RS(shared); s += norm(l) W^T on T/tp rows; out = AG(s).

    T is padded with zero rows to a multiple of tp. `chunks`: pieces of the rows, 0 by T. `exchange`: "collectives",
    "copy" (copy engines, GPUs of one host; falls back to collectives where that cannot be had) or "auto": copy from
    T = 2048 on.
    """
    tokens = routed.shape[0]
    routed, shared = padded_rows(routed, tp.size), padded_rows(shared, tp.size)  # [T', L], [T', H]
    if exchange == "copy" or (exchange == "auto" and tokens >= COPY_FROM):
        buffers = exchange_for(tp, routed, shared)
        if buffers is not None:
            count = chunks or _default_chunks(tokens)
            return end_tokens(routed, shared, weight, norm, tp, buffers, count)[:tokens]
    return _by_collectives(routed, shared, weight, norm, tp, chunks or 1)[:tokens]  # [T, H]


def _default_chunks(tokens: int) -> int:
    """Two pieces where a piece's GEMM outlasts the launches it costs (profiles/h200x2_tails): sooner in a graph."""
    return 2 if tokens >= (4096 if torch.cuda.is_current_stream_capturing() else 16384) else 1


def _by_collectives(routed, shared, weight, norm, tp: TensorParallel, chunks: int) -> torch.Tensor:
    """All reduce-scatters are issued first; the GEMM of each piece runs under those that are still under way."""
    rows = pieces(routed.shape[0], chunks, tp.size)
    latents = [_scatter(routed[piece], tp) for piece in rows]
    hiddens = [_scatter(shared[piece], tp) for piece in rows]
    gathers = []
    for piece, (latent, wait_latent), (own, wait_own) in zip(rows, latents, hiddens, strict=True):
        wait_latent.wait()
        projected = apply_norm(norm, latent) @ weight.t()  # [T'/tp, H]
        wait_own.wait()
        own += projected  # [T'/tp, H]
        # This piece of `shared` has been read by its reduce-scatter: it can take the result.
        gathers.append(tp.all_gather(own, out=shared[piece], async_op=True))
    for gather in gathers:
        gather.wait()
    return shared


def _scatter(x: torch.Tensor, tp: TensorParallel):
    out = x.new_empty(x.shape[0] // tp.size, x.shape[1])
    return out, tp.reduce_scatter(x, out=out, async_op=True)
