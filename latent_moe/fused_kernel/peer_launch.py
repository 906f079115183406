"""Launching the kernels that exchange with the ranks' mailboxes: sizes, grids, and who was late.

T tokens, H hidden, L latent, tp ranks, N = H/tp columns of this rank; mailboxes are int64 words (words.py).
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from latent_moe.errors import LatentMoEError
from latent_moe.fused_kernel.launch import architecture, interpreted, issue, starts_early
from latent_moe.fused_kernel.tile_plan import TilePlan, bucket

# How long a rank waits for another before it gives up.
LIMIT_S = 5.0
# Looks at memory in that time under the interpreter, which takes some 0.2 ms a look.
POLLS_A_SECOND = 4000
SUM_PROGRAMS, SUM_BLOCK = 64, 256
SUM_PLAN = TilePlan(1, 1, SUM_BLOCK, 1, 4, 1)


@dataclass
class Mailbox:
    """A rank's words and where every rank's lie; `numbers` counts launches, `status` holds 1 + a rank that was late.

    `table` [tp] int64 addresses, `numbers` [programs] and `status` [1] int32, all on the rank's device. `keep` holds
    what must live as long.
    """

    table: torch.Tensor
    numbers: torch.Tensor
    status: torch.Tensor
    keep: Any = None

    def check(self) -> None:
        """Raise LatentMoEError naming the rank that was waited for in vain, if one was; waits for the device."""
        late = int(self.status.item())
        if late:
            raise LatentMoEError(
                f"rank {late - 1} sent nothing within {LIMIT_S:g} s to a tail through peer memory: "
                "its results are NaN from that launch on"
            )


@cache
def clock(device: torch.device) -> str:
    """What waits are measured by: see words.py."""
    if device.type != "cuda":
        return "polls"
    return "hip" if torch.version.hip else "cuda"


def _budget(device: torch.device) -> int:
    per_second = {"polls": POLLS_A_SECOND, "cuda": 10**9, "hip": 10**8}[clock(device)]
    # Not 32 bits' end: Triton passes what fits into 32 bits as such.
    return min(int(LIMIT_S * per_second), 2**31 - 16)


@cache
def one_launch_plan(device: torch.device, tokens: int, n: int, k: int) -> TilePlan:
    """One or two tokens: all of K a program. More: 64-wide tiles, K split so that about 100 programs share the weight."""
    size = bucket(tokens)
    if size <= 2:
        return TilePlan(size, 8, k, 1, 8, 1, "rows")
    columns = next(c for c in (64, 32, 16) if n % c == 0)
    parts = [s for s in range(1, 17) if k % (2 * s) == 0 and k // s <= 1024]
    split = min(parts, key=lambda s: abs(n // columns * s - 100), default=1)
    # AMD's wavefronts are twice as wide: four fill what eight do.
    return TilePlan(
        min(size, 16), columns, k // split, split, 8 if clock(device) == "cuda" else 4, 1, "early"
    )


def one_launch_sizes(plan: TilePlan, capacity: int, tp: int, n: int, k: int) -> tuple[int, int]:
    """(words of a mailbox, programs) for at most `capacity` tokens."""
    return 2 * tp * capacity * (k // 2 + n), n // plan.block_n * plan.split


def one_launch_workspace(
    plan: TilePlan, capacity: int, n: int, device: torch.device
) -> tuple[torch.Tensor, ...]:
    """Partial sums, squares and tickets of every tile of `capacity` tokens; tickets start and end at zero."""
    tiles = -(-capacity // plan.block_t) * (n // plan.block_n)
    count = tiles * plan.split * plan.block_t
    return (
        torch.empty(count * plan.block_n, dtype=torch.float32, device=device),
        torch.empty(count, dtype=torch.float32, device=device),
        torch.zeros(tiles, dtype=torch.int32, device=device),
    )


def launch_whole_tail(
    routed: torch.Tensor, shared: torch.Tensor, weight: torch.Tensor, eps: float | None,
    rank: int, tp: int, box: Mailbox, workspace: tuple[torch.Tensor, ...], plan: TilePlan, capacity: int,
) -> None:  # fmt: skip
    """shared [T, H] becomes sum(shared) + RMSNorm(sum(routed [T, L])) W_r^T of every rank, T at most `capacity`."""
    from latent_moe.fused_kernel.one_launch_source import one_launch_tail

    n, k = weight.shape
    device = routed.device
    arguments = (
        routed, shared, weight, box.table, box.numbers, box.status, *workspace, routed.shape[0], routed.stride(0),
        shared.stride(0), weight.stride(0), rank, 0.0 if eps is None else eps, _budget(device),
    )  # fmt: skip
    slice_k = k // plan.split
    constants: dict[str, Any] = {
        "N": n, "K": k, "TP": tp, "CAPACITY": capacity, "HAS_NORM": eps is not None, "BLOCK_T": plan.block_t,
        "BLOCK_N": plan.block_n, "SLICE": slice_k, "WIDTH": 1 << (slice_k // 2 - 1).bit_length(),
        "SPLIT": plan.split, "ROWS": plan.form == "rows", "PDL": starts_early(device), "WIDE_DOT": interpreted(),
        "CLOCK": clock(device),
    }  # fmt: skip
    grid = (n // plan.block_n * plan.split, 1, 1)
    issue(one_launch_tail, grid, (routed, shared, weight), arguments, constants, plan, constants["PDL"])


def latent_words(capacity: int, k: int) -> int:
    """Words a rank sends of a latent [capacity, K], up to whole blocks."""
    return -(-capacity * k // (2 * SUM_BLOCK)) * SUM_BLOCK


def sum_latent(x: torch.Tensor, rank: int, tp: int, box: Mailbox, capacity: int) -> None:
    """x [T, L], rows one after another, summed over the ranks in place; the mailbox holds 2 tp `latent_words`."""
    from latent_moe.fused_kernel.peer_sum_source import sum_to_all

    arguments = (x, box.table, box.numbers, box.status, x.numel(), rank, _budget(x.device))
    constants = {"TP": tp, "CAPACITY": latent_words(capacity, x.shape[1])}
    _sum(sum_to_all, x, arguments, constants)


def sum_hidden(x: torch.Tensor, rank: int, tp: int, box: Mailbox, capacity: int) -> None:
    """x [T, H] summed over the ranks in place; the mailbox holds 2 capacity H words."""
    from latent_moe.fused_kernel.peer_sum_source import sum_by_owner

    n = x.shape[1] // tp
    arguments = (x, box.table, box.numbers, box.status, x.shape[0], x.stride(0), rank, _budget(x.device))
    constants = {"N": n, "TP": tp, "CAPACITY": capacity * (n // 2)}
    _sum(sum_by_owner, x, arguments, constants)


def _sum(kernel, x: torch.Tensor, arguments: tuple, constants: dict[str, Any]) -> None:
    early = starts_early(x.device)
    constants |= {"BLOCK": SUM_BLOCK, "PDL": early, "CLOCK": clock(x.device)}
    issue(
        kernel,
        (SUM_PROGRAMS if architecture(x.device) != "interpreter" else 3, 1, 1),
        (x,),
        arguments,
        constants,
        SUM_PLAN,
        early,
    )
