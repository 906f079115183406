"""The float64 single-process reference of a latent MoE layer, written apart from the layer it judges.

T tokens, H hidden, L latent, E experts, K experts per token, I expert width.

What the reference means for a dtype: weights and inputs are rounded to that dtype first and then widened to
float64, so the error measures the layer's own arithmetic and not the rounding of what it was given.
"""

from collections.abc import Mapping

import torch

from latent_moe.config import LatentMoEConfig

# Two scores this close may change places in fp32: such a token has no one right answer.
_CLEAR_MARGIN = 1e-6


def reference(config: LatentMoEConfig, weights: Mapping[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """x [T, H] -> [T, H] in float64, experts one after another; `weights` is the full state dict."""
    x = x.double()
    combine = _combine(config, weights, x)  # [T, E]
    inner = x @ weights["routed_expert_down_proj.weight"].double().t() if config.is_latent else x  # [T, L]
    routed = torch.zeros_like(inner)  # [T, L]
    for expert in range(config.num_experts):
        w1, w3, w2 = (weights[f"experts.{expert}.{name}.weight"] for name in ("w1", "w3", "w2"))
        routed += combine[:, expert, None] * _mlp(config, inner, w1, w3, w2)
    out = _output(config, weights, routed * config.runner_scale)  # [T, H]
    if config.shared_width:
        names = (f"shared_experts.{name}.weight" for name in ("gate_proj", "up_proj", "down_proj"))
        out = out + _mlp(config, x, *(weights[name] for name in names))
    return out


def relative_error(x: torch.Tensor, ref: torch.Tensor) -> float:
    """norm2(x - ref) / norm2(ref), in float64 on the CPU."""
    x, ref = x.detach().double().cpu(), ref.double()
    return ((x - ref).norm() / ref.norm()).item()


def inputs(config: LatentMoEConfig, weights, tokens: int, seed: int, dtypes) -> torch.Tensor:
    """Fresh normal inputs [T, H] in fp32 whose routing has one right answer in every dtype.

    Tokens for which the last chosen and the first refused expert score within 1e-6 are drawn again.
    """
    generator = torch.Generator().manual_seed(seed)
    kept = torch.empty(0, config.hidden_size)  # [kept so far, H]
    while kept.shape[0] < tokens:
        drawn = torch.randn(tokens, config.hidden_size, generator=generator)  # [T, H]
        clear = torch.ones(tokens, dtype=torch.bool)  # [T]
        for dtype in dtypes:
            clear &= _margin(config, weights, drawn.to(dtype).double(), dtype) > _CLEAR_MARGIN
        kept = torch.cat([kept, drawn[clear]])
    return kept[:tokens]


def _margin(config, weights, x, dtype) -> torch.Tensor:
    if config.experts_per_token == config.num_experts:
        return torch.ones(x.shape[0])
    choice = _scores(weights, x, dtype) + weights["gate.e_score_correction_bias"].double()
    ordered = choice.sort(-1, descending=True).values  # [T, E]
    return ordered[:, config.experts_per_token - 1] - ordered[:, config.experts_per_token]


def _scores(weights, x, dtype=None) -> torch.Tensor:
    gate = weights["gate.weight"]
    return 1 / (1 + torch.exp(-(x @ gate.to(dtype or gate.dtype).double().t())))  # [T, E]


def _combine(config, weights, x) -> torch.Tensor:
    scores = _scores(weights, x)  # [T, E]
    ranking = (scores + weights["gate.e_score_correction_bias"].double()).argsort(-1, descending=True)
    chosen = torch.zeros_like(scores).scatter_(-1, ranking[:, : config.experts_per_token], 1.0)  # [T, E]
    kept = scores * chosen  # [T, E]
    factor = 1.0 if config.scale_routed_output else config.routed_scaling_factor
    return factor * kept / kept.sum(-1, keepdim=True)


def _mlp(config, x, gate, up, down) -> torch.Tensor:
    g, u = x @ gate.double().t(), x @ up.double().t()  # [T, I]
    sigmoid = 1 / (1 + torch.exp(-g))  # [T, I]
    if config.activation == "situ":
        g = config.situ_beta * torch.tanh(g / config.situ_beta)
        u = config.situ_linear_beta * torch.tanh(u / config.situ_linear_beta)
    return (g * sigmoid * u) @ down.double().t()  # [T, L] or [T, H]


def _output(config, weights, routed) -> torch.Tensor:
    if not config.is_latent:
        return routed
    if config.latent_norm:
        scale = (routed.square().mean(-1, keepdim=True) + config.norm_eps).rsqrt()
        routed = routed * scale * weights["routed_expert_norm.weight"].double()
    return routed @ weights["routed_expert_up_proj.weight"].double().t()  # [T, H]
