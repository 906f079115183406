"""vLLM's mixture-of-experts runner with the tails of this package; LATENT_MOE_TAIL picks one.

T tokens, H hidden, L latent, tp ranks. vLLM's part (router, experts, shared experts, padding) stays as it is: the
runner takes the two partial sums from it and ends the layer with a tail.
"""

import logging
from functools import cache

import torch
from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner

from latent_moe.errors import InputError
from latent_moe.vllm_plugin import custom_op
from latent_moe.vllm_plugin.choice import TailChoice, UpProjectionWeight, asked_tail, keep_after_loading
from latent_moe.vllm_plugin.interface import interface
from latent_moe.vllm_plugin.serving_ranks import ServingRanks

logger = logging.getLogger("vllm.latent_moe")


class Norm:
    """vLLM's RMSNorm with the names that the tails know: callable, weight [L], eps."""

    def __init__(self, module: torch.nn.Module):
        self.module = module
        self.eps: float = module.variance_epsilon
        self.folded = False

    @property
    def weight(self) -> torch.Tensor:
        return self.module.weight

    @property
    def gain(self) -> torch.Tensor | None:
        """The weight [L] still to be multiplied in, or None where it is folded into the up-projection."""
        return None if self.folded else self.weight

    def __call__(self, latent: torch.Tensor) -> torch.Tensor:
        return self.module(latent)


class TailRunner(MoERunner):
    """Ends every latent MoE layer with the tail that LATENT_MOE_TAIL asks for.

    Where that tail cannot be used the log names it with the reason and the layer ends as vLLM ends it.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._ranks = ServingRanks.of_server()
        transform = self.routed_output_transform
        self._up_weight = _up_weight(transform, self._ranks)
        self._norm = Norm(transform.norm) if getattr(transform, "norm", None) is not None else None
        self._choice = TailChoice.of_layer(asked_tail(), self, self._up_weight, self._ranks)
        self._choice.announce(self._up_weight)
        self._check_fallback()
        if self._up_weight is not None:
            fold_from = self._norm if self._choice.folds_gain else None
            keep_after_loading(transform.up_proj, self._up_weight, self._choice.needs_all_rows, fold_from)
        custom_op.register(self.layer_name, self._end)

    def _check_fallback(self) -> None:
        if self._choice.usable or interface().reduces_before_transform:
            return
        if self._ranks.size > 1 and self._norm is not None:
            raise InputError(
                f"tail {self._choice.asked!r} is refused here ({self._choice.reason}), and this vLLM "
                f"({interface().version}) has no correct one of its own: it normalises partial sums"
            )

    def forward(
        self,
        hidden_states: torch.Tensor,
        router_logits: torch.Tensor,
        input_ids: torch.Tensor | None = None,
        shared_experts_input: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """hidden_states [T, H], router_logits [T, E] -> [T, H]."""
        if not self._choice.usable or self._fused_output_is_reduced:
            given = () if shared_experts_input is None else (shared_experts_input,)
            return super().forward(hidden_states, router_logits, input_ids, *given)
        routed, shared, width = self._partial_sums(
            hidden_states, router_logits, input_ids, shared_experts_input
        )
        out = self._end(routed, shared)  # [T, H]
        return self._maybe_add_zero_expert_output(out if width is None else out[..., :width])

    def _end(self, routed: torch.Tensor, shared: torch.Tensor) -> torch.Tensor:
        """This rank's partial sums, routed [T, L] and shared [T, H] -> [T, H]."""
        if torch.compiler.is_compiling() and not self._choice.traceable:
            return custom_op.end_layer(self.layer_name, routed, shared)
        return self._choice.run(routed, shared, self._up_weight, self._norm, self._ranks)

    def _partial_sums(self, hidden_states, router_logits, input_ids, shared_experts_input):
        """This rank's routed [T, L] and shared [T, H], and the width to cut the layer's output to (None: as it is)."""
        if shared_experts_input is None:
            hidden_states, shared_experts_input = self.apply_routed_input_transform(
                hidden_states
            )  # [T, L], [T, H]
        padded, latent_width, width = self._maybe_pad_hidden_states(shared_experts_input, hidden_states)
        unpadded = self.moe_config.hidden_dim_unpadded if self._quant_method.has_unpadded_output else 0
        name = self._encode_layer_name()
        shared, routed = self._forward_entry(
            padded, router_logits, shared_experts_input, input_ids, name, unpadded
        )
        return (routed if latent_width is None else routed[..., :latent_width]), shared, width


def _up_weight(transform, ranks: ServingRanks) -> UpProjectionWeight | None:
    up_proj = getattr(transform, "up_proj", None)
    if up_proj is None:
        return None
    return UpProjectionWeight(up_proj, ranks, bool(getattr(transform, "row_sharded", False)))


@cache
def runner_class() -> type[MoERunner]:
    """TailRunner, once the installed vLLM's interface and the tail's name are known to be good.

    Raises InputError for an interface or a LATENT_MOE_TAIL that is not known.
    """
    known = interface()
    tail = asked_tail()
    tried = (
        ""
        if known.tried
        else " (a version that was never tried here, with the runner interface that is known)"
    )
    logger.info("latent_moe: vLLM %s%s, LATENT_MOE_TAIL=%s", known.version, tried, tail)
    return TailRunner
