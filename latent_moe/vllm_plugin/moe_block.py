"""The latent MoE block from vLLM's own parts: router, latent projections, fused experts, shared experts.

T tokens, H hidden, L latent, E experts.
"""

import torch
from torch import nn
from vllm.model_executor.layers.activation import SiluAndMul
from vllm.model_executor.layers.fused_moe import GateLinear
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.layers.linear import MergedColumnParallelLinear, ReplicatedLinear, RowParallelLinear

from latent_moe.errors import InputError
from latent_moe.vllm_plugin.interface import Interface, interface
from latent_moe.vllm_plugin.tail_runner import runner_class


class SharedExperts(nn.Module):
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
        return self.down_proj(self.activation(self.gate_up_proj(x)[0]))[0]


class LatentToHidden(nn.Module):
    """norm, then the up-projection: what vLLM calls the routed output transform. [T, L] -> [T, H]."""

    def __init__(self, norm: nn.Module | None, up_proj: nn.Module):
        super().__init__()
        self.norm = norm
        self.up_proj = up_proj

    def forward(self, latent: torch.Tensor) -> torch.Tensor:
        """latent [T, L], summed over the ranks -> [T, H]."""
        return self.up_proj(latent if self.norm is None else self.norm(latent))[0]


class LatentMoEBlock(nn.Module):
    """x [T, H] -> what the experts add [T, H]."""

    def __init__(self, config, prefix: str):
        super().__init__()
        known = interface()
        hidden, latent = config.hidden_size, config.routed_expert_hidden_size
        # fp32 logits and correction bias: experts are chosen by small differences.
        self.gate = GateLinear(hidden, config.num_experts, out_dtype=torch.float32, prefix=f"{prefix}.gate")
        self.gate.e_score_correction_bias = nn.Parameter(
            torch.empty(config.num_experts, dtype=torch.float32), requires_grad=False
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
            SharedExperts(config, f"{prefix}.shared_experts") if config.num_shared_experts else None
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
