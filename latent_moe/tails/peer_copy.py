"""Exchanging rows between the GPUs of one host by copy engines, which take no processors from the GEMM.

T tokens, N columns, tp ranks. Symmetric memory maps every rank's buffer into every other's address space: a rank
pulls what it needs by plain copies. NVLink multicast is not used. CUDA only; elsewhere, and where mapping fails,
`available` says no and the tails keep to the communicator's collectives.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from latent_moe.parallel import TensorParallel

_exchanges: dict[tuple, "Exchange | None"] = {}


@dataclass
class Mapped:
    """One symmetric buffer [T, N]: this rank's, and a view of every peer's."""

    own: torch.Tensor
    peers: list[torch.Tensor]
    handle: Any


@dataclass
class Exchange:
    """The buffers of one shape, and the stream on which peers are waited for and copied from."""

    routed: Mapped
    shared: Mapped
    out: Mapped
    stream: torch.cuda.Stream


def exchange_for(tp: TensorParallel, routed: torch.Tensor, shared: torch.Tensor) -> Exchange | None:
    """The buffers for these shapes, made once together with all ranks; None where they cannot be had.

    All ranks must ask for the same shapes in the same order, as they do for collectives. Not inside a graph's
    capture for the first time: mapping memory cannot be captured.
    """
    if tp.device.type != "cuda" or torch.version.hip or tp.group is None:
        return None
    key = (id(tp.group), routed.shape, shared.shape, routed.dtype)
    if key not in _exchanges:
        if torch.cuda.is_current_stream_capturing():
            return None
        _exchanges[key] = _agree(tp, _try_make(tp, routed, shared))
    return _exchanges[key]


def _try_make(tp: TensorParallel, routed: torch.Tensor, shared: torch.Tensor) -> Exchange | None:
    try:
        latents, hiddens, results = (_map(tp, x) for x in (routed, shared, shared))
    except (ImportError, AttributeError, RuntimeError):
        return None
    return Exchange(latents, hiddens, results, stream=torch.cuda.Stream(tp.device))


def _map(tp: TensorParallel, like: torch.Tensor) -> Mapped:
    import torch.distributed._symmetric_memory as symmetric

    assert tp.group is not None
    own = symmetric.empty(*like.shape, dtype=like.dtype, device=tp.device)
    handle = symmetric.rendezvous(own, tp.group)
    peers = [handle.get_buffer(rank, own.shape, own.dtype) for rank in range(tp.size)]
    return Mapped(own, peers, handle)


def _agree(tp: TensorParallel, made: Exchange | None) -> Exchange | None:
    """All ranks take it, or none does."""
    fine = torch.tensor([made is not None], dtype=torch.int32, device=tp.device)
    dist.all_reduce(fine, op=dist.ReduceOp.MIN, group=tp.group)
    return made if int(fine) else None
