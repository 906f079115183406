"""Words that carry their own proof of arrival: 32 bits of data and the 32-bit number of the launch that sent them.

A store of eight aligned bytes arrives whole. A reader that polls a word until it carries the number of its own launch
needs no flag, no fence and no counter to be set back: one trip through memory instead of three (NCCL's LL protocol
works so). Numbers grow by one a launch and start at 1; memory starts at 0.

A wait ends after `budget` ticks: the name of the rank that is late goes into `status`, and whatever was to be computed
from it becomes NaN. CLOCK says what a tick is: "cuda" nanoseconds, "hip" 10 ns, "polls" one look at memory.
"""

import triton
import triton.language as tl


@triton.jit
def ticks(polls, CLOCK: tl.constexpr):
    """The time now, in CLOCK's ticks."""
    if CLOCK == "cuda":
        return tl.extra.cuda.globaltimer()
    elif CLOCK == "hip":
        return tl.extra.hip.memrealtime()
    else:
        return polls


@triton.jit
def pair(low, high, number):
    """Words of two 16-bit tiles of one shape."""
    low_bits = low.to(tl.int16, bitcast=True).to(tl.int64) & 0xFFFF
    high_bits = high.to(tl.int16, bitcast=True).to(tl.int64) & 0xFFFF
    return (number.to(tl.int64) << 32) | (high_bits << 16) | low_bits


@triton.jit
def low_half(word, dtype: tl.constexpr):
    """The first tile of `pair`, in fp32."""
    return (word & 0xFFFF).to(tl.int16).to(dtype, bitcast=True).to(tl.float32)


@triton.jit
def high_half(word, dtype: tl.constexpr):
    """The second tile of `pair`, in fp32."""
    return ((word >> 16) & 0xFFFF).to(tl.int16).to(dtype, bitcast=True).to(tl.float32)


@triton.jit
def missing(word, live, number):
    """How many of the live words were not sent by this launch."""
    return tl.sum((((word >> 32) != number) & live).to(tl.int32))


@triton.jit
def receive(at, live, number, budget, status, sender, CLOCK: tl.constexpr):
    """(words at `at`, the budget that is left: 0 once a wait has run out); words that did not come are stale."""
    word = tl.load(at, mask=live, other=0, volatile=True)
    absent = missing(word, live, number)
    if absent > 0:
        polls = budget * 0
        start = ticks(polls, CLOCK)
        spent = polls
        while (absent > 0) & (spent < budget):
            word = tl.load(at, mask=live, other=0, volatile=True)
            absent = missing(word, live, number)
            polls += 1
            spent = ticks(polls, CLOCK) - start
        if absent > 0:
            tl.store(status, sender + 1)
            budget = budget * 0
    return word, budget
