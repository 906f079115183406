"""LatentMoEForCausalLM from vLLM's own layers: K3's MoE structure between attention without positions, and its loading.

T tokens, H hidden, L latent, E experts, V vocabulary.
"""

from collections.abc import Iterable
from typing import ClassVar

import torch
from torch import nn
from vllm.compilation.decorators import support_torch_compile
from vllm.config import VllmConfig
from vllm.distributed import get_tensor_model_parallel_world_size
from vllm.model_executor.layers.activation import SiluAndMul
from vllm.model_executor.layers.fused_moe import GateLinear
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.layers.linear import (
    MergedColumnParallelLinear,
    QKVParallelLinear,
    ReplicatedLinear,
    RowParallelLinear,
)
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding

from latent_moe.errors import InputError
from latent_moe.vllm_plugin.checkpoint import load
from latent_moe.vllm_plugin.interface import Interface, interface
from latent_moe.vllm_plugin.tail_runner import runner_class

try:
    from vllm.model_executor.layers.attention import Attention
except ImportError:  # where vLLM kept it before
    from vllm.attention.layer import Attention  # type: ignore[import-not-found,no-redef]


class DecoderLayer(nn.Module):
    """x += attention(norm(x)); x += moe(norm(x))."""

    def __init__(self, vllm_config: VllmConfig, prefix: str):
        super().__init__()
        config = vllm_config.model_config.hf_config
        self.self_attn = NoPEAttention(vllm_config, f"{prefix}.self_attn")
        self.block_sparse_moe = LatentMoEBlock(config, f"{prefix}.block_sparse_moe")
        self.input_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """x [T, H] -> what this layer adds [T, H], and the sum so far [T, H]."""
        if residual is None:
            residual, x = x, self.input_layernorm(x)  # [T, H]
        else:
            x, residual = self.input_layernorm(x, residual)  # [T, H]
        x, residual = self.post_attention_layernorm(self.self_attn(x), residual)  # [T, H]
        return self.block_sparse_moe(x), residual


@support_torch_compile
class LatentMoEModel(nn.Module):
    """The decoder without its head."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = ""):
        super().__init__()
        config = vllm_config.model_config.hf_config
        self.embed_tokens = VocabParallelEmbedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(
            DecoderLayer(vllm_config, f"{prefix}.layers.{index}") for index in range(config.num_hidden_layers)
        )
        self.norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(
        self,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor,
        intermediate_tensors=None,
        inputs_embeds: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """input_ids [T] -> hidden states [T, H]."""
        x = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds  # [T, H]
        residual = None
        for layer in self.layers:
            x, residual = layer(x, residual)
        return self.norm(x, residual)[0]  # [T, H]


class LatentMoEForCausalLM(nn.Module):
    """What vLLM serves. One pipeline stage; tensor and expert parallel."""

    packed_modules_mapping: ClassVar[dict[str, list[str]]] = {
        "qkv_proj": ["q_proj", "k_proj", "v_proj"],
        "gate_up_proj": ["gate_proj", "up_proj"],
    }

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = ""):
        super().__init__()
        config = vllm_config.model_config.hf_config
        inner = f"{prefix}.model" if prefix else "model"
        self.model = LatentMoEModel(vllm_config=vllm_config, prefix=inner)
        self.lm_head = ParallelLMHead(config.vocab_size, config.hidden_size)
        self.logits_processor = LogitsProcessor(config.vocab_size)

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        """input_ids [T] -> [T, H]."""
        return self.model.embed_tokens(input_ids)

    def forward(
        self,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor,
        intermediate_tensors=None,
        inputs_embeds: torch.Tensor | None = None,
        **_,
    ) -> torch.Tensor:
        """input_ids [T] -> hidden states [T, H]."""
        return self.model(input_ids, positions, intermediate_tensors, inputs_embeds)

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor | None:
        """[T, H] -> logits [T, V] on the rank that samples."""
        return self.logits_processor(self.lm_head, hidden_states)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Load a checkpoint with the names of latent_moe.layer; raises InputError for what is missing or unknown."""
        return load(self, weights)


class NoPEAttention(nn.Module):
    """Grouped-query attention, heads split over the ranks."""

    def __init__(self, vllm_config: VllmConfig, prefix: str):
        super().__init__()
        config = vllm_config.model_config.hf_config
        ranks = get_tensor_model_parallel_world_size()
        heads, kv_heads, width = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        own_heads, own_kv_heads = heads // ranks, max(1, kv_heads // ranks)
        self.sizes = [own_heads * width, own_kv_heads * width, own_kv_heads * width]
        self.qkv_proj = QKVParallelLinear(
            config.hidden_size, width, heads, kv_heads, bias=False, prefix=f"{prefix}.qkv_proj"
        )
        self.o_proj = RowParallelLinear(
            heads * width, config.hidden_size, bias=False, prefix=f"{prefix}.o_proj"
        )
        self.attn = Attention(
            own_heads,
            width,
            width**-0.5,
            num_kv_heads=own_kv_heads,
            cache_config=vllm_config.cache_config,
            prefix=f"{prefix}.attn",
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [T, H] -> [T, H]."""
        qkv, _ = self.qkv_proj(x)  # [T, (heads + 2 kv_heads) width / tp]
        q, k, v = qkv.split(self.sizes, dim=-1)
        return self.o_proj(self.attn(q, k, v))[0]  # [T, H]


class SharedExpertsMLP(nn.Module):
    """One gated MLP of all shared experts; its output stays a partial sum, for the tail to reduce."""

    def __init__(self, config, prefix: str):
        super().__init__()
        width = config.moe_intermediate_size * config.num_shared_experts
        self.gate_up_proj = MergedColumnParallelLinear(
            config.hidden_size, [width] * 2, bias=False, prefix=f"{prefix}.gate_up_proj"
        )
        self.down_proj = RowParallelLinear(
            width, config.hidden_size, bias=False, reduce_results=False, prefix=f"{prefix}.down_proj"
        )
        self.activation = _activation(config)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [T, H] -> this rank's part of [T, H]."""
        return self.down_proj(self.activation(self.gate_up_proj(x)[0]))[0]  # [T, H]


class LatentToHidden(nn.Module):
    """norm, then the up-projection: what vLLM calls the routed output transform. [T, L] -> [T, H]."""

    def __init__(self, norm: nn.Module | None, up_proj: nn.Module):
        super().__init__()
        self.norm = norm
        self.up_proj = up_proj

    def forward(self, latent: torch.Tensor) -> torch.Tensor:
        """latent [T, L], summed over the ranks -> [T, H]."""
        return self.up_proj(latent if self.norm is None else self.norm(latent))[0]  # [T, H]


class LatentMoEBlock(nn.Module):
    """x [T, H] -> what the experts add [T, H]."""

    def __init__(self, config, prefix: str):
        super().__init__()
        known = interface()
        hidden, latent = config.hidden_size, config.routed_expert_hidden_size
        # fp32 logits and correction bias: experts are chosen by small differences.
        self.gate = GateLinear(hidden, config.num_experts, out_dtype=torch.float32, prefix=f"{prefix}.gate")
        self.gate.e_score_correction_bias = nn.Parameter(
            torch.empty(config.num_experts, dtype=torch.float32),
            requires_grad=False,  # [E]
        )
        self.routed_expert_down_proj = ReplicatedLinear(
            hidden, latent, bias=False, prefix=f"{prefix}.routed_expert_down_proj"
        )
        self.routed_expert_norm = (
            RMSNorm(latent, eps=config.rms_norm_eps) if config.latent_moe_use_norm else None
        )
        self.routed_expert_up_proj = ReplicatedLinear(
            latent, hidden, bias=False, prefix=f"{prefix}.routed_expert_up_proj"
        )
        self.shared_experts = (
            SharedExpertsMLP(config, f"{prefix}.shared_experts") if config.num_shared_experts else None
        )
        self.experts = self._experts(config, known, prefix)

    def _experts(self, config, known: Interface, prefix: str) -> nn.Module:
        return known.factory(
            num_experts=config.num_experts,
            top_k=config.num_experts_per_token,
            hidden_size=config.routed_expert_hidden_size,
            intermediate_size=config.moe_intermediate_size,
            activation=config.hidden_act,
            renormalize=True,
            scoring_func="sigmoid",
            e_score_correction_bias=self.gate.e_score_correction_bias,
            # One group of all experts: the same routing, and the one form that the CPU's router takes.
            use_grouped_topk=True,
            num_expert_group=1,
            topk_group=1,
            routed_scaling_factor=config.routed_scaling_factor,
            ckpt_names=("w1", "w2", "w3"),
            shared_experts=self.shared_experts,
            routed_input_transform=self.routed_expert_down_proj,
            routed_output_transform=LatentToHidden(self.routed_expert_norm, self.routed_expert_up_proj),
            runner_cls=runner_class(),
            prefix=f"{prefix}.experts",
            **_situ(config, known),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [T, H] -> [T, H]."""
        router_logits, _ = self.gate(x)  # [T, E]
        return self.experts(hidden_states=x, router_logits=router_logits)  # [T, H]


def _situ(config, known: Interface) -> dict:
    if config.hidden_act != "situ":
        return {}
    return known.situ_arguments(config.activation_situ_beta, config.activation_situ_linear_beta)


def _activation(config) -> nn.Module:
    if config.hidden_act == "silu":
        return SiluAndMul()
    if config.hidden_act != "situ":
        raise InputError(f"hidden_act {config.hidden_act!r} is neither silu nor situ")
    from vllm.model_executor.layers.activation import SituAndMul

    return SituAndMul(beta=config.activation_situ_beta, linear_beta=config.activation_situ_linear_beta)
