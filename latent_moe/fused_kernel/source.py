"""The kernel of the fused tail: RMSNorm, sharded up-projection and accumulate in one launch.

T tokens, N = H/tp columns of this rank, K = L latent; x [T, K], weight [N, K], gain [K], out [T, N] strided view.

The K loop reads x once for two things: the dot product with the weight and the sum of squares. The norm's scale
1/sqrt(mean(x^2) + eps) is the same for a whole row, so it is applied to the finished sum. K is split over programs
so that a small T fills the chip. The program that arrives last at a tile adds the others' partial sums in the order
of their index, not of their arrival: the same bits every run.

A gain that is folded into the weight beforehand (HAS_GAIN false) leaves the tiles as the matrix instruction reads
them; multiplying it in takes each tile of x through registers and back. SWAP computes the transposed product
weight @ x^T: matrix instructions have a long side, and for a small T the weight's rows fill it better than tokens.
GRAM takes the squares from the diagonal of x @ x^T: tiles then never pass through registers, and on a kernel that waits
for memory the matrix unit has the time. FINISH waits for each step's product. Hopper's runs asynchronously from shared
memory, and Triton (3.6 and 3.9) keeps one buffer too few for a tile that registers read as well: the next load may
overwrite what the product still reads. Errors of 1e-2 that changed from run to run showed it; the scale `one` is the
dependence that makes the compiler wait.
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
    HAS_GAIN: tl.constexpr,
    SWAP: tl.constexpr,
    GRAM: tl.constexpr,
    FINISH: tl.constexpr,
    WIDE_DOT: tl.constexpr,
    one,
    acc,
    square,
):
    """This program's slice of K in fp32: acc of the product; square, x * x not yet summed, or x @ x^T (GRAM)."""
    BLOCK_K: tl.constexpr = inner.shape[0]
    for step in range(STEPS):
        offset = step * BLOCK_K
        live_k = inner + offset < K
        if EVEN_K:
            x_tile = tl.load(x_at + offset, mask=live_t[:, None], other=0.0)
            w_tile = tl.load(w_at + offset, mask=live_n[:, None], other=0.0)
        else:
            x_tile = tl.load(x_at + offset, mask=live_t[:, None] & live_k[None, :], other=0.0)
            w_tile = tl.load(w_at + offset, mask=live_n[:, None] & live_k[None, :], other=0.0)
        if HAS_NORM and not GRAM:
            wide = x_tile.to(tl.float32)
            square += wide * wide
            if HAS_GAIN:
                g = tl.load(gain_at + offset, mask=live_k, other=0.0).to(tl.float32)
                x_tile = (wide * g[None, :]).to(w_tile.dtype)
        if WIDE_DOT:  # Triton's interpreter multiplies bf16's bit patterns, not its values
            x_tile, w_tile = x_tile.to(tl.float32), w_tile.to(tl.float32)
        if SWAP:  # noqa: SIM108 - the two sides have different shapes, which only a branch on a constant allows
            acc = tl.dot(w_tile, tl.trans(x_tile), acc)  # [BLOCK_N, BLOCK_T]
        else:
            acc = tl.dot(x_tile, tl.trans(w_tile), acc)  # [BLOCK_T, BLOCK_N]
        if FINISH:
            acc = acc * one
        if HAS_NORM and GRAM:
            square = tl.dot(x_tile, tl.trans(x_tile), square)  # [BLOCK_T, BLOCK_T]
    return acc, square


@triton.jit
def _publish(here, squares_here, ticket, pid_k, acc, square, HAS_NORM: tl.constexpr):
    """Store this program's partial sums, then draw a ticket: how many programs of the tile came before."""
    size: tl.constexpr = acc.shape[0] * acc.shape[1]
    tl.store(here + pid_k * size, acc, cache_modifier=".cg")
    if HAS_NORM:
        tl.store(squares_here + pid_k * square.shape[0], square, cache_modifier=".cg")
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
            square += tl.load(squares_here + part * square.shape[0], cache_modifier=".cg")
    tl.store(ticket, 0)
    return acc, square


@triton.jit
def fused_up_projection(
    x, gain, weight, out, partials, squares, tickets, tokens, stride_x, stride_w, stride_out, eps,
    one, N: tl.constexpr, K: tl.constexpr, HAS_NORM: tl.constexpr, HAS_GAIN: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SPLIT: tl.constexpr,
    SWAP: tl.constexpr, GRAM: tl.constexpr, FINISH: tl.constexpr, WIDE_DOT: tl.constexpr,
):  # fmt: skip
    """out [T, N] += RMSNorm(x [T, K]) @ weight [N, K]^T; grid (N tiles, T tiles, SPLIT)."""
    pid_n, pid_t, pid_k = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    rows = pid_t * BLOCK_T + tl.arange(0, BLOCK_T)  # [BLOCK_T]
    cols = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)  # [BLOCK_N]
    live_t, live_n = rows < tokens, cols < N
    STEPS: tl.constexpr = (K + BLOCK_K * SPLIT - 1) // (BLOCK_K * SPLIT)
    EVEN_K: tl.constexpr = K % (BLOCK_K * SPLIT) == 0
    HIGH: tl.constexpr = BLOCK_N if SWAP else BLOCK_T
    WIDE: tl.constexpr = BLOCK_T if SWAP else BLOCK_N
    inner = pid_k * STEPS * BLOCK_K + tl.arange(0, BLOCK_K)  # [BLOCK_K]
    x_at = x + rows.to(tl.int64)[:, None] * stride_x + inner[None, :]
    w_at = weight + cols.to(tl.int64)[:, None] * stride_w + inner[None, :]
    acc = tl.zeros((HIGH, WIDE), dtype=tl.float32)
    squared = tl.zeros((BLOCK_T, BLOCK_T if GRAM else BLOCK_K), dtype=tl.float32)
    acc, squared = _multiply(
        x_at, w_at, gain + inner, inner, live_t, live_n, K, STEPS, EVEN_K, HAS_NORM, HAS_GAIN, SWAP, GRAM,
        FINISH, WIDE_DOT, one, acc, squared,
    )  # fmt: skip
    if GRAM:
        own = tl.arange(0, BLOCK_T)[:, None] == tl.arange(0, BLOCK_T)[None, :]
        squared = tl.where(own, squared, 0.0)
    square = tl.sum(squared, axis=1)  # [BLOCK_T]
    last = True
    if SPLIT > 1:
        tile = pid_t * tl.num_programs(0) + pid_n
        inside = tl.arange(0, HIGH)[:, None] * WIDE + tl.arange(0, WIDE)[None, :]
        here = partials + tile.to(tl.int64) * SPLIT * BLOCK_T * BLOCK_N + inside
        squares_here = squares + tile.to(tl.int64) * SPLIT * BLOCK_T + tl.arange(0, BLOCK_T)
        last = _publish(here, squares_here, tickets + tile, pid_k, acc, square, HAS_NORM) == SPLIT - 1
        if last:
            acc, square = _collect(here, squares_here, tickets + tile, acc, square, SPLIT, HAS_NORM)
    if last:
        done = tl.trans(acc) if SWAP else acc  # [BLOCK_T, BLOCK_N]
        if HAS_NORM:
            done = done * tl.rsqrt(square / K + eps)[:, None]
        out_at = out + rows.to(tl.int64)[:, None] * stride_out + cols[None, :]
        live = live_t[:, None] & live_n[None, :]
        done += tl.load(out_at, mask=live, other=0.0).to(tl.float32)
        tl.store(out_at, done.to(out.dtype.element_ty), mask=live)
