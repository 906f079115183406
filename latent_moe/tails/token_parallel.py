"""`token_parallel`: each rank ends T/tp tokens: norm, up-projection and add shrink, half the latent bytes travel.

T tokens, H hidden, L latent, tp ranks; W [H, L].
"""

import torch

from latent_moe.parallel import TensorParallel
from latent_moe.tails.norm import apply_norm
from latent_moe.tails.pieces import padded_rows, pieces


def token_parallel(routed, shared, weight, norm, tp: TensorParallel, chunks: int = 0) -> torch.Tensor:
    """l = RS(routed); s = RS(shared); s += norm(l) W^T on T/tp rows; out = AG(s).

    All reduce-scatters are issued first; each piece's GEMM runs under those that are still under way, and its
    all-gather under the next piece's GEMM. T is padded with zero rows to a multiple of tp. `chunks` 0: by T.
    """
    tokens = routed.shape[0]
    routed, shared = padded_rows(routed, tp.size), padded_rows(shared, tp.size)  # [T', L], [T', H]
    rows = pieces(routed.shape[0], chunks or default_chunks(tokens, tp.size), tp.size)
    latents = [_scatter(routed[piece], tp) for piece in rows]
    hiddens = [_scatter(shared[piece], tp) for piece in rows]
    gathers = []
    for piece, (latent, wait_latent), (own, wait_own) in zip(rows, latents, hiddens, strict=True):
        wait_latent.wait()
        projected = torch.einsum("tl,hl->th", apply_norm(norm, latent), weight)  # [T'/tp, H]
        wait_own.wait()
        own += projected  # [T'/tp, H]
        # This piece of `shared` has been read by its reduce-scatter: it can take the result.
        gathers.append(tp.all_gather(own, out=shared[piece], async_op=True))
    for gather in gathers:
        gather.wait()
    return shared[:tokens]  # [T, H]


def default_chunks(tokens: int, tp: int) -> int:
    """Two pieces from T = 4096 on, where a piece's GEMM outlasts the launches it costs (profiles/h200x2_tails)."""
    return 2 if tokens >= 4096 else 1


def _scatter(x: torch.Tensor, tp: TensorParallel):
    out = x.new_empty(x.shape[0] // tp.size, x.shape[1])
    return out, tp.reduce_scatter(x, out=out, async_op=True)
