"""Weights without a checkpoint: random numbers of a trained layer's scale, the same in every arm.

vLLM's own dummy weights are uniform within 0.001 and the same numbers for tensors of one size: answers and logprobs
of such a model say nothing. These are drawn per tensor and rank, so that two arms can be compared token by token.
"""

import math
import zlib

import torch
from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.base_loader import BaseModelLoader

# Every rank holds the whole of these; of the others it holds its shard.
REPLICATED = ("gate.", "norm.", "layernorm.", "routed_expert_")


@register_model_loader("latent_moe_seeded")
class SeededLoader(BaseModelLoader):
    """Fills a model with seeded normal numbers: matrices of deviation 1/sqrt(inputs), norms of one."""

    def download_model(self, model_config) -> None:
        """There is nothing to fetch."""

    @torch.no_grad()
    def load_weights(self, model, model_config) -> None:
        """Draw every parameter of `model` on its own device."""
        from vllm.distributed import get_tensor_model_parallel_rank

        rank = get_tensor_model_parallel_rank()
        for name, weight in model.named_parameters():
            draw(name, weight, 0 if any(part in name for part in REPLICATED) else rank)


def draw(name: str, weight: torch.Tensor, rank: int) -> None:
    """Fill `weight` in place from a generator seeded by its name and the rank."""
    if weight.dim() == 1 and name.endswith("weight"):
        weight.fill_(1.0)
        return
    generator = torch.Generator(device=weight.device).manual_seed(zlib.crc32(f"{name}/{rank}".encode()))
    # Embeddings enter as they are; everything else multiplies an input of its last dimension.
    std = 1.0 if "embed_tokens" in name else 1 / math.sqrt(weight.shape[-1])
    weight.normal_(0.0, 0.01 if name.endswith("bias") else std, generator=generator)
