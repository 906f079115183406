"""The smallest language model made of latent MoE layers: what a checkpoint holds, with logits to compare.

T tokens, H hidden, V vocabulary. No attention: each token is on its own, so that what differs between two
implementations is the MoE layer.
"""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from latent_moe.config import LatentMoEConfig
from latent_moe.errors import InputError
from latent_moe.layer.checkpoint import Checkpoint, save
from latent_moe.layer.moe import LatentMoE
from latent_moe.layer.weights import SeededWeights
from latent_moe.parallel import TensorParallel
from latent_moe.runner import MoERunner
from latent_moe.tail_variants.norm import RMSNorm

EMBED, NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"
LAYER_NORM = "model.layers.{}.post_attention_layernorm.weight"


def save_random_model(
    folder: str | Path,
    config: LatentMoEConfig,
    vocab_size: int,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    config_extra: dict[str, Any] | None = None,
) -> None:
    """Write a checkpoint of `config.num_layers` layers with seeded random weights of trained scale."""
    generator = torch.Generator().manual_seed(seed)
    h = config.hidden_size
    extra = {
        EMBED: torch.randn(vocab_size, h, generator=generator).to(dtype),
        HEAD: torch.randn(vocab_size, h, generator=generator).mul_(h**-0.5).to(dtype),
    }
    for name in (NORM, *(LAYER_NORM.format(layer) for layer in range(config.num_layers))):
        extra[name] = torch.randn(h, generator=generator).mul_(0.1).add_(1.0).to(dtype)
    layers = [SeededWeights(config, seed + 1 + layer, dtype) for layer in range(config.num_layers)]
    written = {
        "vocab_size": vocab_size,
        "torch_dtype": str(dtype).removeprefix("torch."),
        **(config_extra or {}),
    }
    save(folder, config, list(layers), extra, written)


class LatentMoELM(nn.Module):
    """x = embed(ids); x = x + moe_i(norm_i(x)) for each layer; logits = lm_head(norm(x)).

    Embedding and head are whole on every rank; the MoE layers are sharded. Raises InputError naming a tensor that
    the checkpoint lacks.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        tp: TensorParallel,
        *,
        dtype: torch.dtype | None = None,
        runner_cls: type[MoERunner] | None = None,
        runner_args: dict[str, Any] | None = None,
    ):
        super().__init__()
        config = checkpoint.config
        self.embed = self._tensor(checkpoint, EMBED, tp, dtype)  # [V, H]
        self.head = self._tensor(checkpoint, HEAD, tp, dtype)  # [V, H]
        self.norm = self._norm(checkpoint, NORM, tp, dtype)
        numbers = range(config.num_layers)
        self.norms = nn.ModuleList(self._norm(checkpoint, LAYER_NORM.format(i), tp, dtype) for i in numbers)
        how: dict[str, Any] = {"dtype": dtype, "runner_cls": runner_cls, "runner_args": runner_args}
        self.layers = nn.ModuleList(LatentMoE(config, tp, checkpoint.layer(i), **how) for i in numbers)

    @torch.no_grad()
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Token ids [T] -> logits [T, V]."""
        x = self.embed[ids]  # [T, H]
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = x + layer(norm(x))  # [T, H]
        return torch.einsum("th,vh->tv", self.norm(x), self.head)

    @staticmethod
    def _tensor(checkpoint, name: str, tp: TensorParallel, dtype) -> nn.Parameter:
        if name not in checkpoint:
            raise InputError(f"the checkpoint lacks {name}")
        return nn.Parameter(checkpoint[name].to(tp.device, dtype), requires_grad=False)

    def _norm(self, checkpoint, name: str, tp: TensorParallel, dtype) -> RMSNorm:
        weight = self._tensor(checkpoint, name, tp, dtype)
        norm = RMSNorm(weight.shape[0], checkpoint.config.norm_eps)
        norm.weight = weight
        return norm
