"""LatentMoEForCausalLM: embedding, decoder layers, norm, head, and the loading of real checkpoints.

T tokens, H hidden.
"""

from collections.abc import Iterable
from typing import ClassVar

import torch
from torch import nn
from vllm.compilation.decorators import support_torch_compile
from vllm.config import VllmConfig
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding

from latent_moe.vllm_plugin.attention import NoPEAttention
from latent_moe.vllm_plugin.loading import load
from latent_moe.vllm_plugin.moe_block import LatentMoEBlock


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
