"""Exchanging rows between the GPUs of one host by copy engines, which take no processors from the GEMM.

T tokens, N columns, tp ranks. Symmetric memory maps every rank's buffer into every other's address space: a rank
pulls what it needs by plain copies. NVLink multicast is not used. CUDA only; elsewhere, and where mapping fails,
`available` says no and the tails keep to the communicator's collectives.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from latent_moe.fused_kernel import shelf
from latent_moe.parallel import TensorParallel

COPY_FROM = 2048  # tokens; below, launches cost more than the processors that the collectives take
_exchanges: dict[tuple, "Exchange | None"] = {}


@dataclass
class Mapped:
    """One symmetric buffer [T, N]: this rank's, and a view of every peer's."""

    own: torch.Tensor
    peers: list[torch.Tensor]
    handle: Any

    def rows(self, tokens: int) -> "Mapped":
        """The first `tokens` rows of every buffer."""
        return Mapped(self.own[:tokens], [peer[:tokens] for peer in self.peers], self.handle)


@dataclass
class Exchange:
    """The buffers for one step, and the stream on which peers are waited for and copied from."""

    routed: Mapped
    shared: Mapped
    out: Mapped
    stream: torch.cuda.Stream

    def rows(self, tokens: int) -> "Exchange":
        """The first `tokens` rows of every buffer."""
        return Exchange(
            self.routed.rows(tokens), self.shared.rows(tokens), self.out.rows(tokens), self.stream
        )


def exchange_for(tp: TensorParallel, routed: torch.Tensor, shared: torch.Tensor) -> Exchange | None:
    """Buffers of these shapes, mapped once together with all ranks; None where they cannot be had.

    Buffers are kept for powers of two of T and handed out by their first T rows: a server's steps have any T. They belong
    to the stream that asks; a capture takes over its stream's and keeps them, so that steps that run at once share none.
    All ranks must ask for the same shapes in the same order, as they do for collectives. Not inside a graph's capture for
    the first time: mapping memory cannot be captured.
    """
    if tp.device.type != "cuda" or torch.version.hip or tp.group is None or tp.nodes > 1:
        return None
    tokens = routed.shape[0]
    room = max(COPY_FROM, 1 << (tokens - 1).bit_length())
    use = (id(tp.group), room, routed.shape[1], shared.shape[1], routed.dtype)
    whole = shelf.claim(
        _exchanges, shelf.place(tp.device), use, lambda: _agree(tp, _try_make(tp, routed, shared, room))
    )
    return None if whole is None else whole.rows(tokens)


def _try_make(tp: TensorParallel, routed: torch.Tensor, shared: torch.Tensor, room: int) -> Exchange | None:
    # torch fills a mapping's table of addresses at once, past the streams, in memory that kernels still under way may
    # write to: without this wait a busy server read addresses that were none.
    torch.cuda.synchronize(tp.device)
    try:
        latents, hiddens, results = (_map(tp, room, x.shape[1], x.dtype) for x in (routed, shared, shared))
    except (ImportError, AttributeError, RuntimeError):
        return None
    return Exchange(latents, hiddens, results, stream=torch.cuda.Stream(tp.device))


def _map(tp: TensorParallel, rows: int, columns: int, dtype: torch.dtype) -> Mapped:
    import torch.distributed._symmetric_memory as symmetric

    assert tp.group is not None
    own = symmetric.empty(rows, columns, dtype=dtype, device=tp.device)
    handle = symmetric.rendezvous(own, tp.group)
    peers = [handle.get_buffer(rank, own.shape, own.dtype) for rank in range(tp.size)]
    return Mapped(own, peers, handle)


def _agree(tp: TensorParallel, made: Exchange | None) -> Exchange | None:
    """All ranks take it, or none does."""
    fine = torch.tensor([made is not None], dtype=torch.int32, device=tp.device)
    dist.all_reduce(fine, op=dist.ReduceOp.MIN, group=tp.group)
    return made if int(fine) else None
