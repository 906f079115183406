"""One latent MoE layer on one rank, built from one full state dict; and the smallest language model made of such layers.

T tokens, H hidden, L latent, E experts, K experts per token, I expert width, S shared width, V vocabulary, tp ranks.

    x [T, H] -> gate, router -> K experts a token
             -> down-projection [T, L] -> routed experts -> partial [T, L] -+
             -> shared experts ----------------------------> partial [T, H] -+-> tail (norm, up-projection) -> [T, H]
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from latent_moe.config import LatentMoEConfig
from latent_moe.errors import InputError
from latent_moe.parallel import TensorParallel
from latent_moe.runner import MoERunner, make_runner
from latent_moe.tails import RMSNorm, fold_gain
from latent_moe.weights import BIAS, Checkpoint, SeededWeights, save, shard, tensor_shapes


class LatentMoE(nn.Module):
    """A latent MoE layer: x [T, H] -> [T, H], the same result on every rank.

    `weights` maps names (`tensor_shapes`) to full tensors: a dict, SeededWeights, or a checkpoint's layer. Each
    rank takes its shards only. `runner_cls` names the class that runs the layer (None: the baseline MoERunner),
    `runner_args` its keyword arguments, as in vLLM's fused-MoE factory. `dtype` None keeps the weights' own.

    Raises InputError when tp does not divide the widths, or a tensor is missing or has another shape.
    """

    def __init__(
        self,
        config: LatentMoEConfig,
        tp: TensorParallel,
        weights: Mapping[str, torch.Tensor],
        *,
        dtype: torch.dtype | None = None,
        runner_cls: type[MoERunner] | None = None,
        runner_args: dict[str, Any] | None = None,
    ):
        super().__init__()
        config.check_tp(tp.size)
        _check_weights(config, weights)
        self.config, self.tp = config, tp
        gate = weights["gate.weight"]
        self.dtype = dtype or gate.dtype
        self.gate = Gate(gate.to(tp.device, self.dtype), weights[BIAS].to(tp.device))
        cls, options = runner_cls or MoERunner, runner_args or {}
        rows = cls.rows_needed(config, tp.size, **options)
        parts = self._parts(weights, rows)
        transform: Any = parts["routed_output_transform"]
        if transform is not None and cls.folds_gain(config, tp.size, **options):
            transform.fold_gain()
        self.runner = make_runner(runner_cls, config, tp, parts, runner_args)

    def _parts(self, weights, rows: str) -> dict[str, nn.Module | None]:
        config, tp, dtype = self.config, self.tp, self.dtype
        return {
            "router": Router(config, self.gate),
            "experts": RoutedExperts(config, tp, weights, dtype),
            "shared_experts": SharedExperts(config, tp, weights, dtype) if config.shared_width else None,
            "routed_input_transform": self._down(weights) if config.is_latent else None,
            "routed_output_transform": self._up(weights, rows == "own") if config.is_latent else None,
        }

    def _down(self, weights) -> InputTransform:
        return InputTransform(weights["routed_expert_down_proj.weight"].to(self.tp.device, self.dtype))

    def _up(self, weights, row_sharded: bool) -> OutputTransform:
        piece = (self.tp.rank, self.tp.size) if row_sharded else (0, 1)
        weight = shard(weights, "routed_expert_up_proj.weight", *piece).to(self.tp.device, self.dtype)
        norm = None
        if self.config.latent_norm:
            norm = RMSNorm(weight.shape[1], self.config.norm_eps, self.dtype).to(self.tp.device)
            norm.weight.copy_(weights["routed_expert_norm.weight"])
        return OutputTransform(weight, norm, self.tp, row_sharded)

    @torch.no_grad()
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [T, H] -> [T, H]; this rank's own tokens when the layer is sequence-parallel."""
        return self.runner(x, self.gate(x))

    @torch.no_grad()
    def partials(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """What the tail receives: this rank's routed [T, L] and shared [T, H] partial sums."""
        return self.runner.partials(x, self.gate(x))


def _check_weights(config: LatentMoEConfig, weights: Mapping[str, torch.Tensor]) -> None:
    wanted = tensor_shapes(config)
    shapes = getattr(weights, "shapes", None)
    for name, shape in wanted.items():
        if name not in weights:
            raise InputError(f"the state dict lacks {name}")
        actual = tuple(shapes[name] if shapes is not None else weights[name].shape)
        if actual != shape:
            raise InputError(f"{name} has shape {list(actual)}, {list(shape)} was expected")


class Gate(nn.Module):
    """x [T, H] -> router logits [T, E] in fp32, whatever the dtype of x."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor):
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)  # [E, H]
        self.e_score_correction_bias = nn.Parameter(bias.float(), requires_grad=False)  # [E]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Products of the rounded values, summed in fp32."""
        return torch.einsum("th,eh->te", x.float(), self.weight.float())  # [T, E]


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
        # [E, 2, I/tp, L] and [E, L, I/tp], or under expert parallelism [E/tp, 2, I, L] and [E/tp, L, I]
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
            chosen = order[ends[expert - 1] if expert else 0 : ends[expert]]  # [n] of T*K
            if chosen.numel():
                token = chosen // ids.shape[1]  # [n]
                y = self._expert(local, x[token]).float()  # [n, L]
                out.index_add_(0, token, y * weights.flatten()[chosen, None])
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


class InputTransform(nn.Module):
    """The latent down-projection, whole on every rank: x [T, H] -> [T, L]."""

    def __init__(self, weight: torch.Tensor):
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)  # [L, H]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [T, H] -> [T, L]."""
        return torch.einsum("th,lh->tl", x, self.weight)  # [T, L]


class OutputTransform(nn.Module):
    """The latent norm and the up-projection. The tail applies them: what it needs are the norm and rows of W.

    `row_sharded`: `weight` holds only this rank's H/tp rows, 1/tp of the memory.
    """

    def __init__(self, weight: torch.Tensor, norm: nn.Module | None, tp: TensorParallel, row_sharded: bool):
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)  # [H, L] or [H/tp, L]
        self.norm, self.tp, self.row_sharded = norm, tp, row_sharded

    def fold_gain(self) -> None:
        """The norm's gain into the columns of W, once; in place."""
        fold_gain(self.weight.data, self.norm)

    def rows(self, which: str) -> torch.Tensor:
        """W [H, L] for "all", W_r [H/tp, L] for "own" (a view when the whole is there).

        When only the own rows are there, "all" gathers the others: correct, but a collective of H * L elements, so
        a runner keeps all rows wherever it may need them.
        """
        if which == "own":
            return self.weight if self.row_sharded else self.weight[self.tp.columns(self.weight.shape[0])]
        return self.tp.all_gather(self.weight.data) if self.row_sharded else self.weight  # [H, L]


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
        EMBED: torch.randn(vocab_size, h, generator=generator).to(dtype),  # [V, H]
        HEAD: torch.randn(vocab_size, h, generator=generator).mul_(h**-0.5).to(dtype),  # [V, H]
    }
    for name in (NORM, *(LAYER_NORM.format(layer) for layer in range(config.num_layers))):
        extra[name] = torch.randn(h, generator=generator).mul_(0.1).add_(1.0).to(dtype)  # [H]
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
        return torch.einsum("th,vh->tv", self.norm(x), self.head)  # [T, V]

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
