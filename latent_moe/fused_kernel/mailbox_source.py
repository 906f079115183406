"""Sending to and summing from the ranks' mailboxes, in words that prove their own arrival (words.py).

A rank's mailbox has two halves that take turns, launch by launch. Two are enough, since a launch ends only with
something of the same launch from every peer: whoever sends into a half has ended the launch before, and so have all.
"""

import triton
import triton.language as tl

from latent_moe.fused_kernel.words import high_half, low_half, receive


@triton.jit
def mailbox_of(table, rank):
    """The mailbox of `rank` as this rank sees it."""
    return tl.multiple_of(tl.load(table + rank).to(tl.pointer_type(tl.int64)), 16)


@triton.jit
def begin(numbers, status, budget):
    """(this launch's number, the budget: none where an earlier launch has given up)."""
    number = tl.load(numbers + tl.program_id(0)) + 1
    gave_up = tl.load(status)
    budget = tl.where(gave_up != 0, 0, budget.to(tl.int64))
    return number, budget


@triton.jit
def send_to_peers(table, offset, word, live, TP: tl.constexpr, own):
    """`word` to every other rank's mailbox, each rank beginning at its own neighbour."""
    for step in tl.static_range(1, TP):
        tl.store(mailbox_of(table, (own + step) % TP) + offset, word, mask=live, cache_modifier=".wt")


@triton.jit
def sum_of_ranks(
    box, offset, between, live, low, high, number, budget, status, TP: tl.constexpr, own, dtype: tl.constexpr,
    CLOCK: tl.constexpr,
):  # fmt: skip
    """(low tile, high tile, budget): this rank's own tiles and what its peers sent, added by rank in fp32.

    `offset` is that of rank 0 in this rank's mailbox, `between` the words from one rank's to the next. NaN once a peer's
    words did not come in time.
    """
    own_low, own_high = low.to(tl.float32), high.to(tl.float32)
    sum_low, sum_high = tl.zeros_like(own_low), tl.zeros_like(own_high)
    for rank in tl.static_range(TP):
        if rank == own:
            sum_low += own_low
            sum_high += own_high
        else:
            word, budget = receive(box + rank * between + offset, live, number, budget, status, rank, CLOCK)
            sum_low += low_half(word, dtype)
            sum_high += high_half(word, dtype)
    return kept(sum_low, budget), kept(sum_high, budget), budget


@triton.jit
def kept(tile, budget):
    """The tile, or NaN everywhere where the budget is spent."""
    return tl.where(budget > 0, tile, float("nan"))
