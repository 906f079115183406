"""Tensor parallelism over torch.distributed: a rank's view of its group, the three collectives, real ranks.

T tokens, N columns, tp ranks. gloo on a CPU; `nccl` on CUDA and on ROCm, where RCCL answers to that name.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from latent_moe.errors import InputError
from latent_moe.ranks import run_ranks

# torch renamed both; the old names warn where the new ones exist.
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor

# Whose collectives: times of the one do not tell what a tail costs with the other.
TORCH, VLLM = "torch.distributed", "vllm"
__all__ = ["TORCH", "VLLM", "Collective", "Done", "TensorParallel", "in_job", "launch", "launcher"]


@dataclass(frozen=True)
class Collective:
    """One collective as issued: its kind and the bytes of this rank's full-size side."""

    kind: str
    bytes: int


class Done:
    """The handle of a collective that had nothing to wait for."""

    def wait(self) -> None:
        """Return at once."""


@dataclass
class TensorParallel:
    """This rank's place in its tensor-parallel group.

    `issued` lists what was issued, in order: what two tails cost in communication is counted, not assumed.
    `communicator` names whose collectives these are; on `nodes` hosts: peers' memory is mapped on one host only.
    """

    rank: int
    size: int
    group: dist.ProcessGroup | None = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    issued: list[Collective] = field(default_factory=list)
    communicator: str = TORCH
    nodes: int = 1

    @classmethod
    def single(cls, device: str | torch.device = "cpu") -> "TensorParallel":
        """A group of one rank: every collective is a no-op."""
        return cls(rank=0, size=1, device=torch.device(device))

    def columns(self, n: int) -> slice:
        """This rank's n/tp of n columns. Raises InputError when tp does not divide n."""
        if n % self.size:
            raise InputError(f"tp {self.size} does not divide {n}")
        width = n // self.size
        return slice(self.rank * width, (self.rank + 1) * width)

    def all_reduce(self, x: torch.Tensor, async_op: bool = False) -> Any:
        """Sum x over the ranks, in place; returns x, or with async_op a handle to wait on."""
        self._count("all_reduce", x)
        if self.size == 1:
            return Done() if async_op else x
        # On the communicator's own stream also where we wait at once: in a captured graph on two H200 that took
        # column_parallel at T = 1 from 49 to 39 us, and replicated from 46 to 49 (profiles/README.md).
        handle = dist.all_reduce(x, group=self.group, async_op=True)
        if async_op:
            return handle
        handle.wait()
        return x

    def reduce_scatter(self, x: torch.Tensor, out: torch.Tensor | None = None, async_op: bool = False) -> Any:
        """x [T, N] summed over the ranks, this rank's T/tp rows -> [T/tp, N].

        With async_op give `out` and get a handle. Raises InputError when tp does not divide T.
        """
        rows = self.columns(x.shape[0])
        self._count("reduce_scatter", x)
        out = x.new_empty(rows.stop - rows.start, *x.shape[1:]) if out is None else out
        if self.size == 1:
            out.copy_(x)
            return Done() if async_op else out
        handle = _reduce_scatter(out, x.contiguous(), group=self.group, async_op=async_op)
        return handle if async_op else out

    def all_gather(self, x: torch.Tensor, out: torch.Tensor | None = None, async_op: bool = False) -> Any:
        """Every rank's x [T/tp, N], one after another -> [T, N]. With async_op give `out` and get a handle."""
        out = x.new_empty(x.shape[0] * self.size, *x.shape[1:]) if out is None else out
        self._count("all_gather", out)
        if self.size == 1:
            out.copy_(x)
            return Done() if async_op else out
        handle = _all_gather(out, x.contiguous(), group=self.group, async_op=async_op)
        return handle if async_op else out

    def capturing(self, _stream: torch.cuda.Stream) -> AbstractContextManager:
        """What to be in while a graph is captured on a stream; these collectives need nothing."""
        return nullcontext()

    def _count(self, kind: str, x: torch.Tensor) -> None:
        if self.size > 1:
            self.issued.append(Collective(kind, x.numel() * x.element_size()))


def launch(
    fn: Callable[..., Any], tp: int, *args: Any, timeout_s: float = 300, backend: str | None = None
) -> list[Any]:
    """Call fn(tensor_parallel, *args) on `tp` real ranks; returns their results by rank.

    fn must be importable from a module (ranks are processes of their own). `timeout_s` bounds the whole call and
    each collective. `backend` defaults to gloo on a CPU and nccl where there are GPUs, one rank a GPU.

    Raises InputError when tp ranks cannot be had or an argument of fn's own is unusable; LatentMoEError naming
    the rank when one fails, dies or exceeds the limit. The ranks are ended in every case, a Ctrl-C or SIGTERM to
    this process included; they also end by themselves when this process is gone.
    """
    return _launchers[-1](_join, fn, tp, args, timeout_s, backend)


# Where ranks come from, the latest one: this machine, unless a job has started them already.
_launchers: list[Callable[..., list[Any]]] = [run_ranks]


@contextmanager
def launcher(run: Callable[..., list[Any]]) -> Iterator[None]:
    """Inside, `launch` calls run(join, fn, tp, args, timeout_s, backend), as `latent_moe.ranks.run_ranks` is called."""
    _launchers.append(run)
    try:
        yield
    finally:
        _launchers.remove(run)


def in_job() -> bool:
    """Whether a job has started the ranks that `launch` runs on."""
    return len(_launchers) > 1


def _join(rank: int, tp: int, backend: str, rendezvous: str, timeout_s: float) -> TensorParallel:
    if backend == "gloo":
        _share_the_host(tp)
    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if tp == 1:
        return TensorParallel.single(device)
    limit = timedelta(seconds=timeout_s)
    dist.init_process_group(
        backend, init_method=f"file://{rendezvous}", rank=rank, world_size=tp, timeout=limit
    )
    if backend == "gloo":
        # A rank that has nothing to do leaves at once, and would cut off a peer that is still connecting to it.
        dist.barrier()
    return TensorParallel(rank=rank, size=tp, group=dist.group.WORLD, device=device)


def _share_the_host(tp: int) -> None:
    # Ranks share the cores; more threads than cores only wait for each other.
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // tp))
    # All ranks are on this host: no need for its name to resolve to an address that works.
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
