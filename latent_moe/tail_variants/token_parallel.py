"""`token_parallel`: each rank ends T/tp tokens: norm, up-projection and add shrink, half the latent bytes travel.

T tokens, H hidden, L latent, tp ranks; W [H, L]. T' is T padded to a multiple of tp.

With copy engines, peers' rows are pulled under the GEMM instead of sent by kernels beside it.
"""

import torch
from torch.nn.functional import pad

from latent_moe.parallel import TensorParallel
from latent_moe.tail_variants.declaration import Tail
from latent_moe.tail_variants.peer_copy import COPY_FROM, Exchange, Mapped, exchange_for
from latent_moe.tail_variants.pipelined import pieces
from latent_moe.tails import apply_norm

# Waits of one stream take one channel of the signal pad, those of the other stream another.
STAGED, DONE = 0, 1


def token_parallel(
    routed: torch.Tensor,
    shared: torch.Tensor,
    weight: torch.Tensor,
    norm,
    tp: TensorParallel,
    chunks: int = 0,
    exchange: str = "auto",
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
    """x [T', N] -> (this rank's rows of the sum [T'/tp, N], the handle to wait on before reading them)."""
    out = x.new_empty(x.shape[0] // tp.size, x.shape[1])  # [T'/tp, N]
    return out, tp.reduce_scatter(x, out=out, async_op=True)


def padded_rows(x: torch.Tensor, multiple: int) -> torch.Tensor:
    """x [T, N] with zero rows added until T is a multiple; x itself where it already is."""
    missing = -x.shape[0] % multiple
    return pad(x, (0, 0, 0, missing)) if missing else x  # [T', N]


def end_tokens(
    routed, shared, weight, norm, tp: TensorParallel, exchange: Exchange, chunks: int
) -> torch.Tensor:
    """routed [T, L], shared [T, H] partial, tp divides T -> out [T, H], written into `shared`.

    1. Stage the rows that peers end. 2. Copy stream: pull peers' partials of the own rows, latent before hidden.
    3. Per chunk of the own rows: add latents, norm, GEMM, add hidden, publish. 4. Copy stream: pull peers' results.
    """
    main, side = torch.cuda.current_stream(), exchange.stream
    tokens = routed.shape[0]
    own_rows = tp.columns(tokens)
    rows = [
        slice(own_rows.start + c.start, own_rows.start + c.stop)
        for c in pieces(own_rows.stop - own_rows.start, chunks)
    ]
    latents = _staged_pull(routed, exchange.routed, tp, rows, main, side)
    hiddens = _staged_pull(shared, exchange.shared, tp, rows, main, side)
    for piece, latent, hidden in zip(rows, latents, hiddens, strict=True):
        own = _sum(routed[piece], latent, main)  # [T/(tp chunks), L]
        projected = apply_norm(norm, own) @ weight.t()  # [T/(tp chunks), H]
        torch.add(_sum(shared[piece], hidden, main), projected, out=exchange.out.own[piece])
        _pull_results(shared, exchange.out, tp, piece, own_rows, main, side)
    main.wait_stream(side)
    return shared


def _staged_pull(x, mapped: Mapped, tp: TensorParallel, rows, main, side):
    """Publish x's rows for the peers, pull the own rows from them; per piece: ([a peer's rows], event)."""
    own_rows = tp.columns(x.shape[0])
    for others in (slice(0, own_rows.start), slice(own_rows.stop, x.shape[0])):
        if others.stop > others.start:
            mapped.own[others].copy_(x[others])
    side.wait_stream(main)
    pulled = []
    with torch.cuda.stream(side):
        mapped.handle.barrier(channel=STAGED)
        for piece in rows:
            parts = [_pull(mapped.peers[peer][piece], main) for peer in _peers(tp)]
            pulled.append((parts, side.record_event()))
    return pulled


def _peers(tp: TensorParallel) -> list[int]:
    """The other ranks, each rank starting at its own neighbour, so that no link is crowded."""
    return [(tp.rank + step) % tp.size for step in range(1, tp.size)]


def _pull(remote: torch.Tensor, main) -> torch.Tensor:
    local = torch.empty_like(remote)  # [rows, N]
    local.copy_(remote)
    local.record_stream(main)
    return local


def _sum(own: torch.Tensor, pulled: tuple[list[torch.Tensor], torch.cuda.Event], main) -> torch.Tensor:
    """own + the pulled parts, in the order of ranks' distance; waits for the pull only now."""
    parts, ready = pulled
    main.wait_event(ready)
    total = own + parts[0]  # [rows, N]
    for part in parts[1:]:
        total += part
    return total


def _pull_results(shared, out: Mapped, tp: TensorParallel, piece: slice, own_rows: slice, main, side) -> None:
    """Once every rank has published this chunk of its rows: copy the peers' chunks into place."""
    side.wait_stream(main)
    width = own_rows.stop - own_rows.start
    with torch.cuda.stream(side):
        out.handle.barrier(channel=DONE)
        shared[piece].copy_(out.own[piece])
        for peer in _peers(tp):
            shift = (peer - tp.rank) * width
            peer_rows = slice(piece.start + shift, piece.stop + shift)
            shared[peer_rows].copy_(out.peers[peer][peer_rows])


TAIL = Tail(
    "token_parallel",
    token_parallel,
    "all",
    "each rank its tokens: reduce-scatter, end, all-gather",
    gemm_rows="own",
    waits=True,
)
