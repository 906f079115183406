"""Causal attention without position encoding (as Kimi-K3's), from vLLM's own layers.

T tokens, H hidden.
"""

import torch
from torch import nn
from vllm.config import VllmConfig
from vllm.distributed import get_tensor_model_parallel_world_size
from vllm.model_executor.layers.linear import QKVParallelLinear, RowParallelLinear

try:
    from vllm.model_executor.layers.attention import Attention
except ImportError:  # where vLLM kept it before
    from vllm.attention.layer import Attention  # type: ignore[import-not-found,no-redef]


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
        qkv, _ = self.qkv_proj(x)
        q, k, v = qkv.split(self.sizes, dim=-1)
        return self.o_proj(self.attn(q, k, v))[0]  # [T, H]
