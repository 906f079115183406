"""A group of ranks of which only one exists: the compute of a tail at TP = tp shapes, on one device."""

from typing import Any

import torch

from latent_moe.parallel import Done, TensorParallel


class ShapesOnly(TensorParallel):
    """Rank 0 of `size` ranks whose collectives move nothing: what is left is the tail's compute."""

    def all_reduce(self, x: torch.Tensor, async_op: bool = False) -> Any:
        """x as it is."""
        return Done() if async_op else x

    def reduce_scatter(self, x: torch.Tensor, out: torch.Tensor | None = None, async_op: bool = False) -> Any:
        """This rank's rows as they are; `out` is taken as filled."""
        if async_op:
            return Done()
        return x[self.columns(x.shape[0])] if out is None else out

    def all_gather(self, x: torch.Tensor, out: torch.Tensor | None = None, async_op: bool = False) -> Any:
        """`out` is taken as filled."""
        if async_op:
            return Done()
        return x.new_empty(x.shape[0] * self.size, *x.shape[1:]) if out is None else out
