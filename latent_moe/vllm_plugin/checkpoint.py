"""What a served LatentMoEForCausalLM is read from: its config.json, a checkpoint's tensors, or seeded numbers instead.

vLLM's own dummy weights are uniform within 0.001 and the same numbers for tensors of one size: answers and logprobs
of such a model say nothing. The seeded ones have a trained layer's scale and are drawn per tensor and rank, the same
in every arm, so that two arms can be compared token by token.
"""

import math
import zlib
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from transformers import PretrainedConfig
from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.base_loader import BaseModelLoader

from latent_moe.errors import InputError


class LatentMoEHFConfig(PretrainedConfig):
    """Kimi-K3's field names for the MoE, the usual ones for the rest. Attention has no position encoding, as K3's."""

    model_type = "latent_moe"

    def __init__(
        self,
        vocab_size: int = 2048,
        hidden_size: int = 2048,
        num_hidden_layers: int = 6,
        num_attention_heads: int = 16,
        num_key_value_heads: int | None = None,
        head_dim: int | None = None,
        max_position_embeddings: int = 8192,
        rms_norm_eps: float = 1e-5,
        routed_expert_hidden_size: int | None = None,
        num_experts: int = 8,
        num_experts_per_token: int = 2,
        moe_intermediate_size: int = 512,
        num_shared_experts: int = 1,
        latent_moe_use_norm: bool = True,
        routed_scaling_factor: float = 1.0,
        hidden_act: str = "silu",
        activation_situ_beta: float = 4.0,
        activation_situ_linear_beta: float = 25.0,
        **rest: Any,
    ):
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.num_key_value_heads = num_key_value_heads or num_attention_heads
        self.head_dim = head_dim or hidden_size // num_attention_heads
        self.max_position_embeddings = max_position_embeddings
        self.rms_norm_eps = rms_norm_eps
        self.routed_expert_hidden_size = routed_expert_hidden_size
        self.num_experts = num_experts
        self.num_experts_per_token = num_experts_per_token
        self.moe_intermediate_size = moe_intermediate_size
        self.num_shared_experts = num_shared_experts
        self.latent_moe_use_norm = latent_moe_use_norm
        self.routed_scaling_factor = routed_scaling_factor
        self.hidden_act = hidden_act
        self.activation_situ_beta = activation_situ_beta
        self.activation_situ_linear_beta = activation_situ_linear_beta
        super().__init__(**rest)


# checkpoint part -> (stacked parameter's part, which shard of it)
STACKED: dict[str, tuple[str, str | int]] = {
    ".self_attn.q_proj.": (".self_attn.qkv_proj.", "q"),
    ".self_attn.k_proj.": (".self_attn.qkv_proj.", "k"),
    ".self_attn.v_proj.": (".self_attn.qkv_proj.", "v"),
    ".shared_experts.gate_proj.": (".shared_experts.gate_up_proj.", 0),
    ".shared_experts.up_proj.": (".shared_experts.gate_up_proj.", 1),
}
EXPERTS = ".block_sparse_moe.experts."


def load(model: nn.Module, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
    """Load every (name, tensor); returns the names of the parameters that were filled.

    Raises InputError for a tensor that the model has no place for, and for parameters that stay without weights.
    """
    parameters = dict(model.named_parameters())
    loaded: set[str] = set()
    for name, tensor in weights:
        loaded.update(_load_one(model, parameters, name, tensor))
    missing = sorted(set(parameters) - loaded)
    if missing:
        raise InputError(f"the checkpoint lacks {len(missing)} of the model's parameters, {missing[0]} first")
    return loaded


def _load_one(model: nn.Module, parameters: dict, name: str, tensor: torch.Tensor) -> set[str]:
    if EXPERTS in name:
        return _load_expert(model, name, tensor)
    part = next((part for part in STACKED if part in name), None)
    if part is None:
        return _fill(parameters, name, tensor, name)
    target, shard = STACKED[part]
    return _fill(parameters, name.replace(part, target), tensor, name, shard)


def _fill(parameters: dict, target: str, tensor: torch.Tensor, name: str, *shard) -> set[str]:
    from vllm.model_executor.model_loader.weight_utils import default_weight_loader

    if target not in parameters:
        raise InputError(f"the checkpoint's {name} has no place in the model")
    parameter = parameters[target]
    getattr(parameter, "weight_loader", default_weight_loader)(parameter, tensor, *shard)
    return {target}


def _load_expert(model: nn.Module, name: str, tensor: torch.Tensor) -> set[str]:
    prefix, _, within = name.partition(EXPERTS)
    runner = model.get_submodule(prefix + EXPERTS.rstrip("."))
    # vLLM versions report with or without the inner module's name.
    reported = {str(done).removeprefix("routed_experts.") for done in runner.load_weights([(within, tensor)])}
    if not reported:
        raise InputError(f"the checkpoint's {name} has no place in the model")
    return {f"{prefix}{EXPERTS}routed_experts.{done}" for done in reported}


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
