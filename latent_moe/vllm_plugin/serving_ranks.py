"""vLLM's tensor-parallel group behind this package's TensorParallel, so that the tails run on it unchanged.

T tokens, N columns, tp ranks. Collectives without a handle go through vLLM's own device communicators (custom
all-reduce, symmetric memory, shared memory on a CPU: what the server would use anyway); those with a handle through
torch.distributed on the same group, as vLLM has none.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import (
    destroy_model_parallel,
    get_tp_group,
    init_distributed_environment,
    initialize_model_parallel,
    tensor_model_parallel_all_gather,
    tensor_model_parallel_all_reduce,
    tensor_model_parallel_reduce_scatter,
)
from vllm.distributed.parallel_state import GraphCaptureContext

from latent_moe.parallel import VLLM, TensorParallel


class ServingRanks(TensorParallel):
    """This rank's place in the server's tensor-parallel group. Nothing is counted: a server runs for days."""

    @classmethod
    def of_server(cls) -> "ServingRanks":
        """The group of the server that this process belongs to."""
        group = get_tp_group()
        return cls(
            rank=group.rank_in_group,
            size=group.world_size,
            group=group.device_group,
            device=group.device,
            communicator=VLLM,
        )

    def all_reduce(self, x: torch.Tensor, async_op: bool = False) -> Any:
        """Sum over the ranks; returns the sum, which may be another tensor than x."""
        if async_op and self.size > 1:
            return dist.all_reduce(x, group=self.group, async_op=True)
        return super().all_reduce(x, True) if async_op else tensor_model_parallel_all_reduce(x)

    def reduce_scatter(self, x: torch.Tensor, out: torch.Tensor | None = None, async_op: bool = False) -> Any:
        """x [T, N] summed, this rank's rows -> [T/tp, N]."""
        if async_op or out is not None:
            return super().reduce_scatter(x, out, async_op)
        return tensor_model_parallel_reduce_scatter(x, 0)

    def all_gather(self, x: torch.Tensor, out: torch.Tensor | None = None, async_op: bool = False) -> Any:
        """Every rank's rows, one after another -> [T, N]."""
        if async_op or out is not None:
            return super().all_gather(x, out, async_op)
        return tensor_model_parallel_all_gather(x, 0)

    def capturing(self, stream: torch.cuda.Stream) -> AbstractContextManager:
        """vLLM's own context for a capture: its all-reduce exchanges the addresses that the graph uses when it ends."""
        return get_tp_group().graph_capture(GraphCaptureContext(stream))

    def _count(self, kind: str, x: torch.Tensor) -> None:
        return None


@contextmanager
def serving_ranks(tp: TensorParallel) -> Iterator[TensorParallel]:
    """The ranks of `tp`, two or more, with the communicators that a vLLM server makes for them.

    On every rank together. Collectives that vLLM has none of its own for stay torch.distributed's, as in a server.
    """
    with set_current_vllm_config(VllmConfig()):
        init_distributed_environment(tp.size, tp.rank, local_rank=tp.rank, backend=dist.get_backend(tp.group))
        initialize_model_parallel(tp.size)
    try:
        yield ServingRanks.of_server()
    finally:
        destroy_model_parallel()
