"""Mailboxes of the ranks of one host: words that every rank can write into every other's memory.

T tokens, tp ranks. On CUDA torch's symmetric memory maps them (NVLink multicast is not used); under Triton's interpreter
they are files that the ranks share. A mailbox belongs to one stream: launches there follow each other. A graph takes
over what the stream that captures it used before, and keeps it: graphs and branches that run at once share nothing.
"""

import os
import tempfile
from functools import cache
from pathlib import Path

import torch
import torch.distributed as dist

from latent_moe.fused_kernel import interpreted, shelf
from latent_moe.fused_kernel.peer_launch import Mailbox
from latent_moe.parallel import TensorParallel

_mapped: dict[tuple, Mailbox | None] = {}


def why_no_mailbox() -> str | None:
    """Why ranks cannot write into each other's memory here, or None."""
    if interpreted():
        return None
    if not torch.cuda.is_available():
        return "no GPU, and Triton's interpreter is not asked for (TRITON_INTERPRET=1)"
    if torch.version.hip:
        return "torch maps peer memory on CUDA only"
    return None if _can_map() else "this torch has no symmetric memory"


@cache
def _can_map() -> bool:
    try:
        import torch.distributed._symmetric_memory as symmetric
    except ImportError:
        return False
    return hasattr(symmetric, "rendezvous")


def mailbox_for(tp: TensorParallel, use: tuple, words: int, programs: int) -> Mailbox | None:
    """This place's mailbox for `use`, mapped once together with all ranks; None where it cannot be had.

    All ranks must ask for the same in the same order, as they do for collectives. Memory cannot be mapped during a
    capture: there only what the capturing stream has used before can be had, and only by one graph.
    """
    if tp.group is None or why_no_mailbox() is not None:
        return None
    return shelf.claim(
        _mapped, shelf.place(tp.device), (id(tp.group), *use), lambda: _agreed(tp, words, programs)
    )


def check_peers() -> None:
    """Raise LatentMoEError naming the rank that a tail of this process waited for in vain; waits for the device."""
    for box in _mapped.values():
        if box is not None:
            box.check()


def _agreed(tp: TensorParallel, words: int, programs: int) -> Mailbox | None:
    """All ranks have it, or none does; nobody writes before everyone's words are zero."""
    mapped = (_map_cuda if tp.device.type == "cuda" else _map_files)(tp, words)
    fine = torch.tensor([mapped is not None], dtype=torch.int32, device=tp.device)
    dist.all_reduce(fine, op=dist.ReduceOp.MIN, group=tp.group)
    if mapped is None or not int(fine):
        return None
    addresses, keep = mapped
    table = torch.tensor(addresses, dtype=torch.int64, device=tp.device)
    numbers, status = (torch.zeros(count, dtype=torch.int32, device=tp.device) for count in (programs, 1))
    return Mailbox(table, numbers, status, keep)


def _map_cuda(tp: TensorParallel, words: int) -> tuple[list[int], object] | None:
    import torch.distributed._symmetric_memory as symmetric

    assert tp.group is not None
    # torch writes a mapping's addresses past the streams, into memory that kernels still under way may write to.
    torch.cuda.synchronize(tp.device)
    try:
        own = symmetric.empty(words, dtype=torch.int64, device=tp.device)
        handle = symmetric.rendezvous(own, tp.group)
        peers = [handle.get_buffer(rank, own.shape, own.dtype) for rank in range(tp.size)]
    except (AttributeError, RuntimeError):
        return None
    own.zero_()
    torch.cuda.synchronize(tp.device)
    return [peer.data_ptr() for peer in peers], (own, peers, handle)


def _map_files(tp: TensorParallel, words: int) -> tuple[list[int], object] | None:
    """One file a rank in a folder that rank 0 makes; the files have no name left once all ranks have mapped them."""
    assert tp.group is not None
    folder: list[str | None] = [tempfile.mkdtemp(prefix="latent_moe_mailbox_") if tp.rank == 0 else None]
    dist.broadcast_object_list(folder, src=dist.get_global_rank(tp.group, 0), group=tp.group)
    paths = [Path(str(folder[0])) / str(rank) for rank in range(tp.size)]
    with paths[tp.rank].open("wb") as file:
        file.truncate(8 * words)
    dist.barrier(group=tp.group)
    peers = [torch.from_file(str(path), shared=True, size=words, dtype=torch.int64) for path in paths]
    dist.barrier(group=tp.group)
    if tp.rank == 0:
        for path in paths:
            path.unlink()
        os.rmdir(str(folder[0]))
    return [peer.data_ptr() for peer in peers], peers
