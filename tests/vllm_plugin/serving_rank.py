"""What runs on the ranks of test_standalone.py; importable, because ranks are processes of their own."""

import torch

from latent_moe.parallel import TensorParallel
from latent_moe.vllm_plugin.serving_ranks import serving_ranks


def sums(tp: TensorParallel) -> dict:
    """One all-reduce by vLLM's communicator, and what it was."""
    from vllm.distributed import get_tp_group

    with serving_ranks(tp) as ranks:
        found = {
            "sum": float(ranks.all_reduce(torch.full((4,), tp.rank + 1.0))[0]),
            "communicator": ranks.communicator,
            "by": type(get_tp_group().device_communicator).__module__,
            "columns": (ranks.columns(8).start, ranks.columns(8).stop),
        }
    try:
        get_tp_group()
    except AssertionError:
        return found | {"left": True}
    return found | {"left": False}
