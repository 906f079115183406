"""The router: sigmoid scores, a correction bias that steers the choice only, renormalised top-k, all in fp32.

T tokens, H hidden, E experts, K experts per token.
"""

import torch
from torch import nn

from latent_moe.config import LatentMoEConfig


class Gate(nn.Module):
    """x [T, H] -> router logits [T, E] in fp32, whatever the dtype of x."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor):
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)  # [E, H]
        self.e_score_correction_bias = nn.Parameter(bias.float(), requires_grad=False)  # [E]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Products of the rounded values, summed in fp32."""
        return torch.einsum("th,eh->te", x.float(), self.weight.float())


class Router(nn.Module):
    """Logits [T, E] -> weights [T, K] fp32 and expert ids [T, K].

    The bias decides which experts are chosen; the weights are the chosen experts' unbiased scores over their sum,
    times the routed scaling factor where the router carries it. One expert group, as Kimi-K3's config has it.
    """

    def __init__(self, config: LatentMoEConfig, gate: Gate):
        super().__init__()
        self.bias = gate.e_score_correction_bias
        self.top_k = config.experts_per_token
        self.scale = 1.0 if config.scale_routed_output else config.routed_scaling_factor

    def forward(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[T, E] -> ([T, K], [T, K])."""
        scores = logits.float().sigmoid()  # [T, E]
        ids = (scores + self.bias).topk(self.top_k, dim=-1).indices  # [T, K]
        chosen = scores.gather(-1, ids)  # [T, K]
        return self.scale * chosen / chosen.sum(-1, keepdim=True), ids
