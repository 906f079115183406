"""config.json of a LatentMoEForCausalLM, as transformers and vLLM read it."""

from typing import Any

from transformers import PretrainedConfig


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
