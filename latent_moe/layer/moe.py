"""LatentMoE: one layer on one rank, built from one full state dict that every rank sees.

T tokens, H hidden, L latent, E experts, tp ranks.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from latent_moe.config import LatentMoEConfig
from latent_moe.errors import InputError
from latent_moe.layer.experts import RoutedExperts, SharedExperts
from latent_moe.layer.router import Gate, Router
from latent_moe.layer.transforms import InputTransform, OutputTransform
from latent_moe.layer.weights import BIAS, shard, tensor_shapes
from latent_moe.parallel import TensorParallel
from latent_moe.runner import MoERunner, make_runner
from latent_moe.tail_variants.norm import RMSNorm


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
        found = tuple(shapes[name] if shapes is not None else weights[name].shape)
        if found != shape:
            raise InputError(f"{name} has shape {list(found)}, {list(shape)} was expected")
