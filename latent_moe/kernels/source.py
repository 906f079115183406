"""The kernel of the fused tail: RMSNorm, sharded up-projection and accumulate in one launch.

T tokens, N = H/tp columns of this rank, K = L latent; x [T, K], weight [N, K], gain [K], out [T, N] strided view.

The K loop reads x once for two things: the dot product with the weight and the sum of squares. The norm's scale
1/sqrt(mean(x^2) + eps) is the same for a whole row, so it is applied to the finished sum. K is split over programs
so that a small T fills the chip. The program that arrives last at a tile adds the others' partial sums in the order
of their index, not of their arrival: the same bits every run.
"""

import triton
import triton.language as tl


@triton.jit
def _multiply(
    x_at,
    w_at,
    gain_at,
    inner,
    live_t,
    live_n,
    K: tl.constexpr,
    STEPS: tl.constexpr,
    EVEN_K: tl.constexpr,
    HAS_NORM: tl.constexpr,
    WIDE_DOT: tl.constexpr,
    acc,
    square,
):
    """This program's slice of K: acc [BLOCK_T, BLOCK_N] of the product, square [BLOCK_T] of x; both in fp32."""
    BLOCK_K: tl.constexpr = inner.shape[0]
    for step in range(STEPS):
        offset = step * BLOCK_K
        live_k = inner + offset < K
        if EVEN_K:
            x_tile = tl.load(x_at + offset, mask=live_t[:, None], other=0.0)
            w_tile = tl.load(w_at + offset, mask=live_n[None, :], other=0.0)
        else:
            x_tile = tl.load(x_at + offset, mask=live_t[:, None] & live_k[None, :], other=0.0)
            w_tile = tl.load(w_at + offset, mask=live_n[None, :] & live_k[:, None], other=0.0)
        if HAS_NORM:
            g = tl.load(gain_at + offset, mask=live_k, other=0.0).to(tl.float32)
            wide = x_tile.to(tl.float32)
            square += tl.sum(wide * wide, axis=1)
            x_tile = (wide * g[None, :]).to(w_tile.dtype)
        if WIDE_DOT:  # Triton's interpreter multiplies bf16's bit patterns, not its values
            x_tile, w_tile = x_tile.to(tl.float32), w_tile.to(tl.float32)
        acc = tl.dot(x_tile, w_tile, acc)  # [BLOCK_T, BLOCK_N]
    return acc, square


@triton.jit
def _publish(here, squares_here, ticket, pid_k, acc, square, HAS_NORM: tl.constexpr):
    """Store this program's partial sums, then draw a ticket: how many programs of the tile came before."""
    size: tl.constexpr = acc.shape[0] * acc.shape[1]
    tl.store(here + pid_k * size, acc, cache_modifier=".cg")
    if HAS_NORM:
        tl.store(squares_here + pid_k * acc.shape[0], square, cache_modifier=".cg")
    # Every thread's stores come before the ticket, and the ticket before the last program's loads.
    tl.debug_barrier()
    return tl.atomic_add(ticket, 1, sem="acq_rel")


@triton.jit
def _collect(here, squares_here, ticket, acc, square, SPLIT: tl.constexpr, HAS_NORM: tl.constexpr):
    """The tile's partial sums added in the order of their programs; the ticket is ready for the next launch."""
    size: tl.constexpr = acc.shape[0] * acc.shape[1]
    acc, square = tl.zeros_like(acc), tl.zeros_like(square)
    for part in tl.static_range(SPLIT):
        acc += tl.load(here + part * size, cache_modifier=".cg")
        if HAS_NORM:
            square += tl.load(squares_here + part * acc.shape[0], cache_modifier=".cg")
    tl.store(ticket, 0)
    return acc, square


@triton.jit
def fused_up_projection(
    x, gain, weight, out, partials, squares, tickets, tokens, stride_x, stride_w, stride_out, eps,
    N: tl.constexpr, K: tl.constexpr, HAS_NORM: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SPLIT: tl.constexpr,
    WIDE_DOT: tl.constexpr,
):  # fmt: skip
    """out [T, N] += RMSNorm(x [T, K]) @ weight [N, K]^T; grid (N tiles, T tiles, SPLIT)."""
    pid_n, pid_t, pid_k = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    rows = pid_t * BLOCK_T + tl.arange(0, BLOCK_T)  # [BLOCK_T]
    cols = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)  # [BLOCK_N]
    live_t, live_n = rows < tokens, cols < N
    STEPS: tl.constexpr = (K + BLOCK_K * SPLIT - 1) // (BLOCK_K * SPLIT)
    EVEN_K: tl.constexpr = K % (BLOCK_K * SPLIT) == 0
    inner = pid_k * STEPS * BLOCK_K + tl.arange(0, BLOCK_K)  # [BLOCK_K]
    x_at = x + rows.to(tl.int64)[:, None] * stride_x + inner[None, :]
    w_at = weight + cols.to(tl.int64)[None, :] * stride_w + inner[:, None]
    acc = tl.zeros((BLOCK_T, BLOCK_N), dtype=tl.float32)
    square = tl.zeros((BLOCK_T,), dtype=tl.float32)
    acc, square = _multiply(
        x_at, w_at, gain + inner, inner, live_t, live_n, K, STEPS, EVEN_K, HAS_NORM, WIDE_DOT, acc, square
    )
    last = True
    if SPLIT > 1:
        tile = pid_t * tl.num_programs(0) + pid_n
        inside = tl.arange(0, BLOCK_T)[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
        here = partials + tile.to(tl.int64) * SPLIT * BLOCK_T * BLOCK_N + inside
        squares_here = squares + tile.to(tl.int64) * SPLIT * BLOCK_T + tl.arange(0, BLOCK_T)
        last = _publish(here, squares_here, tickets + tile, pid_k, acc, square, HAS_NORM) == SPLIT - 1
        if last:
            acc, square = _collect(here, squares_here, tickets + tile, acc, square, SPLIT, HAS_NORM)
    if last:
        if HAS_NORM:
            acc = acc * tl.rsqrt(square / K + eps)[:, None]
        out_at = out + rows.to(tl.int64)[:, None] * stride_out + cols[None, :]
        live = live_t[:, None] & live_n[None, :]
        acc += tl.load(out_at, mask=live, other=0.0).to(tl.float32)
        tl.store(out_at, acc.to(out.dtype.element_ty), mask=live)
