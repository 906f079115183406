"""The whole tail in one kernel: both sums over the ranks and the sharded up-projection between, through mapped memory.

T tokens, H hidden, L = K latent, tp ranks, N = H/tp; routed [T, K], shared [T, H], weight W_r [N, K]; 2 values a word.

A half of a rank's mailbox holds what every rank sends in one launch: its part of the latent [tp, CAPACITY, K/2], its
partial sums of this rank's columns [tp, CAPACITY, N/2], and its finished columns, the same size. Nobody raises a flag,
nobody waits at a barrier: the words prove their own arrival (words.py, mailbox_source.py).

The weights are loaded before anything is waited for. A tile of columns waits only for tiles of its own or a lower
index: not all programs need be resident, and ranks need not start together. Every sum goes by rank, then by part: the
same bits on every rank and in every run.
"""

import triton
import triton.language as tl

from latent_moe.fused_kernel.mailbox_source import begin, kept, mailbox_of, send_to_peers, sum_of_ranks
from latent_moe.fused_kernel.source import _collect, _publish
from latent_moe.fused_kernel.words import high_half, low_half, pair, receive


@triton.jit
def _load_pair(at, half: tl.constexpr, live):
    """Two tiles `half` values apart."""
    return tl.load(at, mask=live, other=0.0), tl.load(at + half, mask=live, other=0.0)


@triton.jit
def _products(w_low, w_high, x_low, x_high, ROWS: tl.constexpr, WIDE_DOT: tl.constexpr):
    """(w x^T [BLOCK_N, BLOCK_T], squares of x [BLOCK_T]) of both halves of a slice of K."""
    wide_low, wide_high = x_low.to(tl.float32), x_high.to(tl.float32)
    square = tl.sum(wide_low * wide_low + wide_high * wide_high, axis=1)
    if ROWS:
        low = w_low.to(tl.float32)[:, None, :] * wide_low[None, :, :]
        acc = tl.sum(low + w_high.to(tl.float32)[:, None, :] * wide_high[None, :, :], axis=2)
    else:
        if WIDE_DOT:
            x_low, x_high, w_low, w_high = wide_low, wide_high, w_low.to(tl.float32), w_high.to(tl.float32)
        acc = tl.dot(w_low, tl.trans(x_low))
        acc = tl.dot(w_high, tl.trans(x_high), acc)
    return acc, square


@triton.jit
def _gather(
    box, offset, between, out_at, columns, half: tl.constexpr, live, number, budget, status, TP: tl.constexpr, own,
    dtype: tl.constexpr, CLOCK: tl.constexpr,
):  # fmt: skip
    """Every peer's finished columns of this tile into place."""
    for step in tl.static_range(1, TP):
        peer = (own + TP - step) % TP
        word, budget = receive(box + peer * between + offset, live, number, budget, status, peer, CLOCK)
        tl.store(out_at + peer * columns, kept(low_half(word, dtype), budget).to(dtype), mask=live)
        tl.store(out_at + peer * columns + half, kept(high_half(word, dtype), budget).to(dtype), mask=live)
    return budget


@triton.jit
def one_launch_tail(
    routed, shared, weight, table, numbers, status, partials, squares, tickets, tokens, stride_x, stride_s, stride_w,
    own, eps, budget,
    N: tl.constexpr, K: tl.constexpr, TP: tl.constexpr, CAPACITY: tl.constexpr, HAS_NORM: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_N: tl.constexpr, SLICE: tl.constexpr, WIDTH: tl.constexpr, SPLIT: tl.constexpr,
    ROWS: tl.constexpr, PDL: tl.constexpr, WIDE_DOT: tl.constexpr, CLOCK: tl.constexpr,
):  # fmt: skip
    """shared [T, H] becomes sum(shared) + RMSNorm(sum(routed)) W^T; grid (N tiles * SPLIT), parts fastest.

    WIDTH is the power of two at or above SLICE/2. BLOCK_N divides N, SPLIT * SLICE is K.
    """
    pid = tl.program_id(0)
    tile, part = pid // SPLIT, pid % SPLIT
    dtype: tl.constexpr = routed.dtype.element_ty
    HALF_K: tl.constexpr = SLICE // 2
    HALF_N: tl.constexpr = BLOCK_N // 2
    latents: tl.constexpr = CAPACITY * (K // 2)
    columns: tl.constexpr = CAPACITY * (N // 2)
    k, n = tl.arange(0, WIDTH), tl.arange(0, HALF_N)
    cols = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    w_at = weight + cols[:, None].to(tl.int64) * stride_w + part * SLICE + k[None, :]
    w_low, w_high = _load_pair(w_at, HALF_K, (k[None, :] < HALF_K) & (cols[:, None] >= 0))
    if PDL:
        tl.extra.cuda.gdc_wait()
    number, budget = begin(numbers, status, budget)
    turn = (number & 1).to(tl.int64) * (TP * (latents + 2 * columns))
    box = mailbox_of(table, own) + turn
    for first in range(0, tokens, BLOCK_T):
        rows = first + tl.arange(0, BLOCK_T)
        live = (rows[:, None] < tokens) & (k[None, :] < HALF_K)
        live_out = (rows[:, None] < tokens) & (n[None, :] >= 0)
        x_offset = rows[:, None] * (K // 2) + part * HALF_K + k[None, :]
        s_offset = TP * latents + rows[:, None] * (N // 2) + tile * HALF_N + n[None, :]
        g_offset = s_offset + TP * columns
        s_at = shared + rows[:, None].to(tl.int64) * stride_s + tile * BLOCK_N + n[None, :]
        x_at = routed + rows[:, None].to(tl.int64) * stride_x + part * SLICE + k[None, :]
        x_low, x_high = _load_pair(x_at, HALF_K, live)
        if tile == 0:
            send_to_peers(table, turn + own * latents + x_offset, pair(x_low, x_high, number), live, TP, own)
        for step in tl.static_range(1, TP):
            peer = (own + step) % TP
            if peer % SPLIT == part:
                low, high = _load_pair(s_at + peer * N, HALF_N, live_out)
                there = mailbox_of(table, peer) + turn + own * columns + s_offset
                tl.store(there, pair(low, high, number), mask=live_out, cache_modifier=".wt")
        x_low, x_high, budget = sum_of_ranks(
            box, x_offset, latents, live, x_low, x_high, number, budget, status, TP, own, dtype, CLOCK
        )
        # Beyond the slice 0, also where the sum is NaN: the mask keeps nothing from peers there.
        x_low, x_high = tl.where(live, x_low, 0.0).to(dtype), tl.where(live, x_high, 0.0).to(dtype)
        acc, square = _products(w_low, w_high, x_low, x_high, ROWS, WIDE_DOT)
        last = True
        if SPLIT > 1:
            spot = (first // BLOCK_T) * (N // BLOCK_N) + tile
            inside = tl.arange(0, BLOCK_N)[:, None] * BLOCK_T + tl.arange(0, BLOCK_T)[None, :]
            here = partials + spot.to(tl.int64) * SPLIT * BLOCK_T * BLOCK_N + inside
            squares_here = squares + spot.to(tl.int64) * SPLIT * BLOCK_T + tl.arange(0, BLOCK_T)
            last = _publish(here, squares_here, tickets + spot, part, acc, square, HAS_NORM) == SPLIT - 1
            if last:
                acc, square = _collect(here, squares_here, tickets + spot, acc, square, SPLIT, HAS_NORM)
        if last:
            if HAS_NORM:
                acc = acc * tl.rsqrt(square / K + eps)[None, :]
            low, high = _load_pair(s_at + own * N, HALF_N, live_out)
            low, high, budget = sum_of_ranks(
                box, s_offset, columns, live_out, low, high, number, budget, status, TP, own, dtype, CLOCK
            )
            done_low, done_high = tl.split(tl.permute(tl.reshape(acc, (2, HALF_N, BLOCK_T)), (2, 1, 0)))
            low, high = (low + done_low).to(dtype), (high + done_high).to(dtype)  # [BLOCK_T, HALF_N]
            send_to_peers(table, turn + own * columns + g_offset, pair(low, high, number), live_out, TP, own)
            tl.store(s_at + own * N, low, mask=live_out)
            tl.store(s_at + own * N + HALF_N, high, mask=live_out)
            budget = _gather(
                box,
                g_offset,
                columns,
                s_at,
                N,
                HALF_N,
                live_out,
                number,
                budget,
                status,
                TP,
                own,
                dtype,
                CLOCK,
            )
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    tl.store(numbers + pid, number)
