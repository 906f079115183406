"""All-reduces over mapped peer memory that take part in a chain of early launches: they let the next kernel start early.

T tokens, N = H/tp columns of a rank, tp ranks. Both sum in place, in fp32, by rank: the same bits on every rank. What
travels are words of two values through the ranks' mailboxes (mailbox_source.py). A grid's size never depends on T: all
programs then count the same launches.

The next kernel may start once the kernel before this one has ended, not sooner: were a whole chain let in at once, its
programs would fill the processors that a peer's or another branch's sums wait for.
"""

import triton
import triton.language as tl

from latent_moe.fused_kernel.mailbox_source import begin, kept, mailbox_of, send_to_peers, sum_of_ranks
from latent_moe.fused_kernel.words import high_half, low_half, pair, receive


@triton.jit
def sum_to_all(
    x, table, numbers, status, count, own, budget, TP: tl.constexpr, CAPACITY: tl.constexpr, BLOCK: tl.constexpr,
    PDL: tl.constexpr, CLOCK: tl.constexpr,
):  # fmt: skip
    """x, `count` values one after another, summed in place: every rank sends all of it to every rank (one hop)."""
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    dtype: tl.constexpr = x.dtype.element_ty
    number, budget = begin(numbers, status, budget)
    turn = (number & 1).to(tl.int64) * (TP * CAPACITY)
    word_at = tl.arange(0, BLOCK)
    blocks = tl.cdiv(count, 2 * BLOCK)
    for block in range(tl.program_id(0), blocks, tl.num_programs(0)):
        value = block * 2 * BLOCK + word_at
        low = tl.load(x + value, mask=value < count, other=0.0)
        high = tl.load(x + value + BLOCK, mask=value + BLOCK < count, other=0.0)
        there = turn + own * CAPACITY + block * BLOCK + word_at
        send_to_peers(table, there, pair(low, high, number), word_at >= 0, TP, own)
    box = mailbox_of(table, own) + turn
    for block in range(tl.program_id(0), blocks, tl.num_programs(0)):
        value = block * 2 * BLOCK + word_at
        low = tl.load(x + value, mask=value < count, other=0.0)
        high = tl.load(x + value + BLOCK, mask=value + BLOCK < count, other=0.0)
        low, high, budget = sum_of_ranks(
            box, block * BLOCK + word_at, CAPACITY, word_at >= 0, low, high, number, budget, status, TP, own, dtype,
            CLOCK,
        )  # fmt: skip
        tl.store(x + value, low.to(dtype), mask=value < count)
        tl.store(x + value + BLOCK, high.to(dtype), mask=value + BLOCK < count)
    tl.store(numbers + tl.program_id(0), number)


@triton.jit
def sum_by_owner(
    x, table, numbers, status, tokens, stride, own, budget, N: tl.constexpr, TP: tl.constexpr,
    CAPACITY: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr, CLOCK: tl.constexpr,
):  # fmt: skip
    """x [T, H] summed in place: each rank sums its N columns of all ranks and sends the sums on (two hops)."""
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    dtype: tl.constexpr = x.dtype.element_ty
    number, budget = begin(numbers, status, budget)
    HALF: tl.constexpr = N // 2
    turn = (number & 1).to(tl.int64) * (2 * TP * CAPACITY)
    count = tokens * HALF
    blocks = tl.cdiv(count, BLOCK)
    for block in range(tl.program_id(0), blocks, tl.num_programs(0)):
        word_at = block * BLOCK + tl.arange(0, BLOCK)
        live = word_at < count
        x_at = x + (word_at // HALF).to(tl.int64) * stride + word_at % HALF
        for step in tl.static_range(1, TP):
            peer = (own + step) % TP
            low = tl.load(x_at + peer * N, mask=live, other=0.0)
            high = tl.load(x_at + peer * N + HALF, mask=live, other=0.0)
            there = mailbox_of(table, peer) + turn + own * CAPACITY + word_at
            tl.store(there, pair(low, high, number), mask=live, cache_modifier=".wt")
    box = mailbox_of(table, own) + turn
    for block in range(tl.program_id(0), blocks, tl.num_programs(0)):
        word_at = block * BLOCK + tl.arange(0, BLOCK)
        live = word_at < count
        x_at = x + (word_at // HALF).to(tl.int64) * stride + word_at % HALF + own * N
        low = tl.load(x_at, mask=live, other=0.0)
        high = tl.load(x_at + HALF, mask=live, other=0.0)
        low, high, budget = sum_of_ranks(
            box, word_at, CAPACITY, live, low, high, number, budget, status, TP, own, dtype, CLOCK
        )
        low, high = low.to(dtype), high.to(dtype)
        send_to_peers(table, turn + (TP + own) * CAPACITY + word_at, pair(low, high, number), live, TP, own)
        tl.store(x_at, low, mask=live)
        tl.store(x_at + HALF, high, mask=live)
    for block in range(tl.program_id(0), blocks, tl.num_programs(0)):
        word_at = block * BLOCK + tl.arange(0, BLOCK)
        live = word_at < count
        x_at = x + (word_at // HALF).to(tl.int64) * stride + word_at % HALF
        for step in tl.static_range(1, TP):
            peer = (own + TP - step) % TP
            word, budget = receive(
                box + (TP + peer) * CAPACITY + word_at, live, number, budget, status, peer, CLOCK
            )
            tl.store(x_at + peer * N, kept(low_half(word, dtype), budget).to(dtype), mask=live)
            tl.store(x_at + peer * N + HALF, kept(high_half(word, dtype), budget).to(dtype), mask=live)
    tl.store(numbers + tl.program_id(0), number)
