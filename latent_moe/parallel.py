"""Tensor parallelism over torch.distributed: a rank's view of its group, the three collectives, real ranks.

T tokens, N columns, tp ranks. gloo on a CPU; `nccl` on CUDA and on ROCm, where RCCL answers to that name.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from latent_moe.errors import InputError
from latent_moe.launch import launch

__all__ = ["Collective", "Done", "TensorParallel", "launch"]


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
    """

    rank: int
    size: int
    group: dist.ProcessGroup | None = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    issued: list[Collective] = field(default_factory=list)

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
        handle = dist.all_reduce(x, group=self.group, async_op=async_op)
        return handle if async_op else x

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
        handle = dist.reduce_scatter_tensor(out, x.contiguous(), group=self.group, async_op=async_op)
        return handle if async_op else out

    def all_gather(self, x: torch.Tensor, out: torch.Tensor | None = None, async_op: bool = False) -> Any:
        """Every rank's x [T/tp, N], one after another -> [T, N]. With async_op give `out` and get a handle."""
        out = x.new_empty(x.shape[0] * self.size, *x.shape[1:]) if out is None else out
        self._count("all_gather", out)
        if self.size == 1:
            out.copy_(x)
            return Done() if async_op else out
        handle = dist.all_gather_into_tensor(out, x.contiguous(), group=self.group, async_op=async_op)
        return handle if async_op else out

    def _count(self, kind: str, x: torch.Tensor) -> None:
        if self.size > 1:
            self.issued.append(Collective(kind, x.numel() * x.element_size()))
