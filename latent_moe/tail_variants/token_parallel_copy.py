"""token_parallel by copy engines: peers' rows are pulled under the GEMM instead of sent by kernels beside it.

T tokens, H hidden, L latent, tp ranks; W [H, L].
"""

import torch

from latent_moe.parallel import TensorParallel
from latent_moe.tail_variants.norm import apply_norm
from latent_moe.tail_variants.peer_copy import Exchange, Mapped
from latent_moe.tail_variants.pieces import pieces

# Waits of one stream take one channel of the signal pad, those of the other stream another.
STAGED, DONE = 0, 1


def end_tokens(
    routed, shared, weight, norm, tp: TensorParallel, exchange: Exchange, chunks: int
) -> torch.Tensor:
    """routed [T, L], shared [T, H] partial, tp divides T -> out [T, H], written into `shared`.

    1. Stage the rows that peers end. 2. Copy stream: pull peers' partials of our rows, latent before hidden.
    3. Per chunk of our rows: add latents, norm, GEMM, add hidden, publish. 4. Copy stream: pull peers' results.
    """
    main, side = torch.cuda.current_stream(), exchange.stream
    tokens = routed.shape[0]
    mine = tp.columns(tokens)
    rows = [slice(mine.start + c.start, mine.start + c.stop) for c in pieces(mine.stop - mine.start, chunks)]
    latents = _staged_pull(routed, exchange.routed, tp, rows, main, side)
    hiddens = _staged_pull(shared, exchange.shared, tp, rows, main, side)
    for piece, latent, hidden in zip(rows, latents, hiddens, strict=True):
        own = _sum(routed[piece], latent, main)  # [T/(tp chunks), L]
        projected = apply_norm(norm, own) @ weight.t()  # [T/(tp chunks), H]
        torch.add(_sum(shared[piece], hidden, main), projected, out=exchange.out.own[piece])
        _pull_results(shared, exchange.out, tp, piece, mine, main, side)
    main.wait_stream(side)
    return shared


def _staged_pull(x, mapped: Mapped, tp: TensorParallel, rows, main, side):
    """Publish x's rows for the peers, pull theirs for us; per piece: ([peer rows], event)."""
    mine = tp.columns(x.shape[0])
    for others in (slice(0, mine.start), slice(mine.stop, x.shape[0])):
        if others.stop > others.start:
            mapped.own[others].copy_(x[others])
    side.wait_stream(main)
    pulled = []
    with torch.cuda.stream(side):
        mapped.handle.barrier(channel=STAGED)
        for piece in rows:
            parts = [_pull(mapped.peers[peer][piece], side, main) for peer in _peers(tp)]
            pulled.append((parts, side.record_event()))
    return pulled


def _peers(tp: TensorParallel) -> list[int]:
    """The other ranks, each rank starting at its own neighbour, so that no link is crowded."""
    return [(tp.rank + step) % tp.size for step in range(1, tp.size)]


def _pull(remote: torch.Tensor, side, main) -> torch.Tensor:
    local = torch.empty_like(remote)
    local.copy_(remote)
    local.record_stream(main)
    return local


def _sum(own: torch.Tensor, pulled: tuple[list[torch.Tensor], torch.cuda.Event], main) -> torch.Tensor:
    """own + the pulled parts, in the order of ranks' distance; waits for the pull only now."""
    parts, ready = pulled
    main.wait_event(ready)
    total = own + parts[0]
    for part in parts[1:]:
        total += part
    return total


def _pull_results(shared, out: Mapped, tp: TensorParallel, piece: slice, mine: slice, main, side) -> None:
    """Once every rank has published this chunk of its rows: copy the peers' chunks into place."""
    side.wait_stream(main)
    width = mine.stop - mine.start
    with torch.cuda.stream(side):
        out.handle.barrier(channel=DONE)
        shared[piece].copy_(out.own[piece])
        for peer in _peers(tp):
            shift = (peer - tp.rank) * width
            theirs = slice(piece.start + shift, piece.stop + shift)
            shared[theirs].copy_(out.peers[peer][theirs])
