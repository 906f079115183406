"""The baseline runner: router, experts, shared experts, and a replicated tail for every kind of layer.

T tokens, H hidden, L latent, E experts, K experts per token, tp ranks.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from latent_moe.config import LatentMoEConfig
from latent_moe.parallel import TensorParallel
from latent_moe.runner.eligibility import Refusal
from latent_moe.tail_variants.norm import apply_norm
from latent_moe.tails import replicated


@dataclass(frozen=True)
class Decision:
    """Which tail runs, which was asked for, and why they differ (None when they do not).

    `note` says how an automatic choice was made.
    """

    tail: str
    asked: str
    refusal: Refusal | None = None
    note: str | None = None

    @property
    def eligible(self) -> bool:
        """Whether the tail asked for is the one that runs."""
        return self.refusal is None

    @property
    def reason(self) -> str | None:
        """Why the tail asked for cannot run, in one line."""
        return None if self.refusal is None else self.refusal.text


class MoERunner(nn.Module):
    """Executes one MoE layer on this rank and ends it with the replicated tail, as vLLM did before the change.

    The parts are modules: `router(logits [T, E]) -> (weights [T, K], ids [T, K])`;
    `experts(x, weights, ids)` -> this rank's partial [T, L]; `shared_experts(x [T, H])` -> its partial [T, H];
    `routed_input_transform` [T, H] -> [T, L]; `routed_output_transform` with `.norm` and `.rows(which)`.
    `output_is_reduced`: the experts' combine kernel has already summed the routed output over the ranks.
    """

    def __init__(
        self,
        config: LatentMoEConfig,
        tp: TensorParallel,
        router: nn.Module,
        experts: nn.Module,
        shared_experts: nn.Module | None = None,
        routed_input_transform: nn.Module | None = None,
        routed_output_transform: nn.Module | None = None,
        *,
        output_is_reduced: bool = False,
    ):
        super().__init__()
        self.config, self.tp = config, tp
        self.router, self.experts, self.shared_experts = router, experts, shared_experts
        self.routed_input_transform = routed_input_transform
        self.routed_output_transform = routed_output_transform
        self.output_is_reduced = output_is_reduced
        self.last = Decision("replicated", "replicated")

    @classmethod
    def rows_needed(cls, config: LatentMoEConfig, tp_size: int, **runner_args: Any) -> str:
        """Which rows of the up-projection a rank must hold: "all", or its "own" H/tp."""
        return "all"

    @classmethod
    def folds_gain(cls, config: LatentMoEConfig, tp_size: int, **runner_args: Any) -> bool:
        """Whether the latent norm's gain is to be folded into the up-projection when the weights load."""
        return False

    def decide(self, tokens: int, tail: str | None = None) -> Decision:
        """Which tail ends a step of `tokens` tokens."""
        return Decision("replicated", "replicated")

    def forward(self, x: torch.Tensor, router_logits: torch.Tensor) -> torch.Tensor:
        """x [T, H], router_logits [T, E] -> [T, H], the same on every rank.

        In a sequence-parallel layer T counts this rank's own tokens, and so does the result.
        """
        return self.finish(*self.partials(x, router_logits))

    def partials(self, x, router_logits) -> tuple[torch.Tensor, torch.Tensor | None]:
        """This rank's partial sums before the tail: routed [T, L] and shared [T, H] (None: no shared experts)."""
        if self.config.sequence_parallel:
            x, router_logits = self.tp.all_gather(x), self.tp.all_gather(router_logits)
        weights, ids = self.router(router_logits)  # [T, K], [T, K]
        latent = x if self.routed_input_transform is None else self.routed_input_transform(x)  # [T, L]
        routed = self.experts(latent, weights, ids)  # [T, L], partial
        shared = None if self.shared_experts is None else self.shared_experts(x)  # [T, H], partial
        return self._combine(routed, shared)

    def _combine(self, routed, shared):
        if self.config.sequence_parallel:
            # Each rank ends with its own tokens, complete.
            scattered = None if shared is None else self.tp.reduce_scatter(shared)
            return self.tp.reduce_scatter(routed), scattered
        if self.output_is_reduced:
            # Stands for a combine kernel that reduces on its way.
            routed = self.tp.all_reduce(routed)
        return routed, shared

    def finish(self, routed, shared, tail: str | None = None) -> torch.Tensor:
        """The tail: partials -> out [T, H]. May overwrite both."""
        self.last = self.decide(routed.shape[0], tail)
        return self.replicated_tail(routed, shared)

    def replicated_tail(self, routed, shared) -> torch.Tensor:
        """The tail for every kind of layer: whole up-projection on every rank, whatever has to be reduced."""
        transform: Any = self.routed_output_transform
        if transform is None:
            return self._plain_tail(routed, shared)
        weight = transform.rows("all")  # [H, L]
        if self._is_standard and shared is not None:
            return replicated(routed, shared, weight, transform.norm, self.tp)
        latent = self._reduce(routed, already=self.output_is_reduced)  # [T, L]
        latent = latent * self.config.runner_scale
        projected = apply_norm(transform.norm, latent) @ weight.t()  # [T, H]
        return projected if shared is None else projected + self._reduce(shared)

    @property
    def _is_standard(self) -> bool:
        special = self.config.sequence_parallel or self.output_is_reduced
        return not special and self.config.runner_scale == 1.0

    def _plain_tail(self, routed, shared) -> torch.Tensor:
        # Nothing stands between the two sums: one all-reduce does for both.
        if self.output_is_reduced:
            out = routed * self.config.runner_scale
            return out if shared is None else out + self._reduce(shared)
        out = routed * self.config.runner_scale
        return self._reduce(out if shared is None else out + shared)

    def _reduce(self, x, already: bool = False) -> torch.Tensor:
        return x if already or self.config.sequence_parallel else self.tp.all_reduce(x)


def make_runner(
    runner_cls: type[MoERunner] | None,
    config: LatentMoEConfig,
    tp: TensorParallel,
    parts: dict[str, Any],
    runner_args: dict[str, Any] | None = None,
) -> MoERunner:
    """The seam: a model names the class that runs its MoE layers; None is the baseline, `MoERunner`."""
    return (runner_cls or MoERunner)(config, tp, **parts, **(runner_args or {}))
