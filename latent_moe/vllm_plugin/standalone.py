"""vLLM's tensor-parallel group without a server: what its collectives cost a tail, measured by itself."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import (
    destroy_model_parallel,
    init_distributed_environment,
    initialize_model_parallel,
)

from latent_moe.parallel import TensorParallel
from latent_moe.vllm_plugin.serving_ranks import ServingRanks


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
