"""The experts of one rank: gated MLPs whose outputs are partial sums over the ranks.

T tokens, H hidden, L latent, E experts, K experts per token, I expert width, S shared width, tp ranks.
"""

import torch
from torch import nn

from latent_moe.config import LatentMoEConfig
from latent_moe.layer.weights import shard
from latent_moe.parallel import TensorParallel


def glu(gate: torch.Tensor, up: torch.Tensor, config: LatentMoEConfig) -> torch.Tensor:
    """The gated activation in fp32, result in gate's dtype.

    silu: gate * sigmoid(gate) * up. situ (Kimi-K3's SiTU-GLU, beta b and linear beta c):
    b * tanh(gate / b) * sigmoid(gate) * c * tanh(up / c).
    """
    g, u = gate.float(), up.float()
    if config.activation == "silu":
        return (nn.functional.silu(g) * u).to(gate.dtype)
    b, c = config.situ_beta, config.situ_linear_beta
    return (b * torch.tanh(g / b) * torch.sigmoid(g) * c * torch.tanh(u / c)).to(gate.dtype)


def _frozen(x: torch.Tensor) -> nn.Parameter:
    return nn.Parameter(x, requires_grad=False)


class RoutedExperts(nn.Module):
    """This rank's share of the routed experts: I/tp of each one's width, or whole experts under expert parallelism."""

    def __init__(self, config: LatentMoEConfig, tp: TensorParallel, weights, dtype: torch.dtype):
        super().__init__()
        self.config = config
        whole = config.expert_parallel(tp.size)
        count = config.num_experts // tp.size if whole else config.num_experts
        self.first = tp.rank * count if whole else 0
        piece = (0, 1) if whole else (tp.rank, tp.size)
        width = config.expert_width // piece[1]
        size = config.expert_input_size
        self.w13 = _frozen(torch.empty(count, 2, width, size, dtype=dtype, device=tp.device))
        self.w2 = _frozen(torch.empty(count, size, width, dtype=dtype, device=tp.device))
        for local in range(count):
            prefix = f"experts.{self.first + local}"
            self.w13[local, 0].copy_(shard(weights, f"{prefix}.w1.weight", *piece))
            self.w13[local, 1].copy_(shard(weights, f"{prefix}.w3.weight", *piece))
            self.w2[local].copy_(shard(weights, f"{prefix}.w2.weight", *piece))

    def forward(self, x: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """x [T, L], weights [T, K] fp32, ids [T, K] -> this rank's partial [T, L], summed in fp32."""
        out = torch.zeros_like(x, dtype=torch.float32)  # [T, L]
        flat = ids.flatten()  # [T*K]
        order = flat.argsort(stable=True)  # tokens of one expert side by side
        ends = torch.bincount(flat, minlength=self.config.num_experts).cumsum(0).tolist()
        for local in range(self.w13.shape[0]):
            expert = self.first + local
            mine = order[ends[expert - 1] if expert else 0 : ends[expert]]  # [n] of T*K
            if mine.numel():
                token = mine // ids.shape[1]  # [n]
                y = self._expert(local, x[token]).float()  # [n, L]
                out.index_add_(0, token, y * weights.flatten()[mine, None])
        return out.to(x.dtype)

    def _expert(self, local: int, x: torch.Tensor) -> torch.Tensor:
        gate, up = x @ self.w13[local, 0].t(), x @ self.w13[local, 1].t()  # [n, I/tp] each
        return glu(gate, up, self.config) @ self.w2[local].t()  # [n, L]


class SharedExperts(nn.Module):
    """The shared experts as one MLP of width S, S/tp on this rank: x [T, H] -> partial [T, H]."""

    gate_proj: nn.Parameter  # [S/tp, H]
    up_proj: nn.Parameter  # [S/tp, H]
    down_proj: nn.Parameter  # [H, S/tp]

    def __init__(self, config: LatentMoEConfig, tp: TensorParallel, weights, dtype: torch.dtype):
        super().__init__()
        self.config = config
        for name in ("gate_proj", "up_proj", "down_proj"):
            piece = shard(weights, f"shared_experts.{name}.weight", tp.rank, tp.size)
            setattr(self, name, _frozen(piece.to(device=tp.device, dtype=dtype)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [T, H] -> [T, H], this rank's partial sum."""
        gate, up = x @ self.gate_proj.t(), x @ self.up_proj.t()  # [T, S/tp] each
        return glu(gate, up, self.config) @ self.down_proj.t()  # [T, H]
