"""The fused tail's kernel for few tokens, its weights read early: W's slice is in registers before x exists.

T tokens, N = H/tp columns of this rank, K = L latent; x [T, K], weight [N, K], out [T, N] strided view.

A program owns BLOCK_N columns and SLICE of the latent, all of which it loads at once. With PDL (NVIDIA's programmatic
dependent launch) it starts while the kernel before still runs, loads its weights, and only then waits for that kernel;
and it lets the next kernel do the same. Nothing but the weights is read before the wait, and nothing is written.
ROWS multiplies and adds without the matrix unit: for one or two tokens, where a program can own all of K and nothing
passes between programs. Otherwise K is split over programs and summed as in source.py: the same bits every run.
"""

import triton
import triton.language as tl

from latent_moe.fused_kernel.source import _collect, _publish


@triton.jit
def project_rows(x, inner, live_k, w_tile, tokens, stride_x, BLOCK_N: tl.constexpr, BLOCK_T: tl.constexpr):
    """(sums [BLOCK_N, BLOCK_T], squares [BLOCK_T]) by multiply-adds, one token after another."""
    wide = w_tile.to(tl.float32)
    column = tl.arange(0, BLOCK_T)
    acc = tl.zeros((BLOCK_N, BLOCK_T), dtype=tl.float32)
    square = tl.zeros((BLOCK_T,), dtype=tl.float32)
    for row in tl.static_range(BLOCK_T):
        live = live_k & (row + 0 * inner < tokens)
        x_row = tl.load(x + row * stride_x + inner, mask=live, other=0.0).to(tl.float32)
        acc = tl.where(column[None, :] == row, tl.sum(wide * x_row[None, :], axis=1)[:, None], acc)
        square = tl.where(column == row, tl.sum(x_row * x_row, axis=0), square)
    return acc, square


@triton.jit
def early_up_projection(
    x, weight, out, partials, squares, tickets, tokens, stride_x, stride_w, stride_out, eps,
    N: tl.constexpr, K: tl.constexpr, HAS_NORM: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_N: tl.constexpr,
    SLICE: tl.constexpr, WIDTH: tl.constexpr, SPLIT: tl.constexpr, ROWS: tl.constexpr, PDL: tl.constexpr,
    WIDE_DOT: tl.constexpr,
):  # fmt: skip
    """out [T, N] += RMSNorm(x [T, K]) @ weight [N, K]^T; grid (N tiles, T tiles, SPLIT); WIDTH: SLICE's power of two."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    pid_n, pid_t, pid_k = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    cols = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)  # [BLOCK_N]
    inner = tl.arange(0, WIDTH)  # [WIDTH]
    first = pid_t * BLOCK_T
    rows = first + tl.arange(0, BLOCK_T)  # [BLOCK_T]
    live_n, live_t, live_k = cols < N, rows < tokens, (inner < SLICE) & (pid_k * SLICE + inner < K)
    w_at = weight + cols[:, None].to(tl.int64) * stride_w + pid_k * SLICE + inner[None, :]
    w_tile = tl.load(w_at, mask=live_n[:, None] & live_k[None, :], other=0.0)
    if PDL:
        tl.extra.cuda.gdc_wait()
    x += first.to(tl.int64) * stride_x + pid_k * SLICE
    out_at = out + rows[None, :].to(tl.int64) * stride_out + cols[:, None]  # [BLOCK_N, BLOCK_T]
    live = live_n[:, None] & live_t[None, :]
    if SPLIT == 1:
        before = tl.load(out_at, mask=live, other=0.0)
    if ROWS:
        acc, square = project_rows(x, inner, live_k, w_tile, tokens - first, stride_x, BLOCK_N, BLOCK_T)
    else:
        x_at = x + tl.arange(0, BLOCK_T)[:, None].to(tl.int64) * stride_x + inner[None, :]
        x_tile = tl.load(x_at, mask=live_t[:, None] & live_k[None, :], other=0.0)
        wide = x_tile.to(tl.float32)
        square = tl.sum(wide * wide, axis=1)
        if WIDE_DOT:
            x_tile, w_tile = wide, w_tile.to(tl.float32)
        acc = tl.dot(w_tile, tl.trans(x_tile))  # [BLOCK_N, BLOCK_T]
    last = True
    if SPLIT > 1:
        tile = pid_t * tl.num_programs(0) + pid_n
        inside = tl.arange(0, BLOCK_N)[:, None] * BLOCK_T + tl.arange(0, BLOCK_T)[None, :]
        here = partials + tile.to(tl.int64) * SPLIT * BLOCK_T * BLOCK_N + inside
        squares_here = squares + tile.to(tl.int64) * SPLIT * BLOCK_T + tl.arange(0, BLOCK_T)
        last = _publish(here, squares_here, tickets + tile, pid_k, acc, square, HAS_NORM) == SPLIT - 1
        if last:
            acc, square = _collect(here, squares_here, tickets + tile, acc, square, SPLIT, HAS_NORM)
    if last:
        if HAS_NORM:
            acc = acc * tl.rsqrt(square / K + eps)[None, :]
        if SPLIT > 1:
            before = tl.load(out_at, mask=live, other=0.0)
        tl.store(out_at, (acc + before.to(tl.float32)).to(out.dtype.element_ty), mask=live)
