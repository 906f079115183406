"""Runners execute a latent MoE layer's experts and end the layer with a tail.

`MoERunner` is the baseline; `ROCmLatentMoERunner` is the change: it shards the tail over the tensor-parallel ranks
wherever the layer allows it. `refusal` says where it does not, in words a person can act on.

T tokens, H hidden, L latent, E experts, K experts per token, tp ranks of the tensor-parallel process group. The group's
size decides whether a tail is sharded, not the experts' own tensor-parallel size: that is 1 under expert parallelism,
where the tail still has tp ranks to use.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from latent_moe.config import LatentMoEConfig
from latent_moe.errors import InputError, unknown
from latent_moe.parallel import TensorParallel
from latent_moe.tail_variants.aiter import check_kernels
from latent_moe.tail_variants.declaration import Tail
from latent_moe.tail_variants.registry import AUTO, DEFAULT, TAILS, check_name
from latent_moe.tails import ACCUMULATE, apply_norm, replicated

# (tokens, config, tp) -> (the name of a tail that can run there, why in one line).
Choose = Callable[[int, LatentMoEConfig, TensorParallel], tuple[str, str]]


@dataclass(frozen=True)
class Refusal:
    """Why a tail cannot run: a stable code for programs, one line for people."""

    code: str
    text: str


def refusal(
    tail: Tail,
    config: LatentMoEConfig,
    tp_size: int,
    *,
    has_up_projection: bool = True,
    output_is_reduced: bool = False,
    tokens: int | None = None,
    dtype: torch.dtype | None = None,
) -> Refusal | None:
    """The first reason why `tail` cannot end this layer, None when it can; `replicated` always can.

    `tokens` None asks about the layer alone, as when it is built: conditions on T are then left out.
    """
    if tail.name == "replicated":
        return None
    layer = _layer_refusal(config, tp_size, has_up_projection, output_is_reduced)
    return layer or size_refusal(tail, config, tp_size, tokens, dtype)


def _layer_refusal(
    config: LatentMoEConfig, tp_size: int, has_up_projection: bool, output_is_reduced: bool
) -> Refusal | None:
    """What no tail but the replicated one can end."""
    if not config.is_latent:
        return Refusal("not_latent", "the layer is not latent: its experts work on the hidden size")
    if not has_up_projection:
        return Refusal("no_up_projection", "no up-projection: the routed output has no transform to shard")
    if tp_size == 1:
        return Refusal("tp_1", "tp = 1: there are no other ranks to share the up-projection with")
    if config.shared_width == 0:
        return Refusal(
            "no_shared_experts", "no shared experts: there is no shared partial to accumulate into"
        )
    if config.sequence_parallel:
        text = "sequence-parallel layer: each rank ends its own tokens, nothing is reduced after the tail"
        return Refusal("sequence_parallel", text)
    if config.runner_scale != 1.0:
        text = f"routed scaling factor {config.runner_scale:g} is applied at the runner (!= 1.0)"
        return Refusal("routed_scaling", text)
    if output_is_reduced:
        return Refusal("output_is_reduced", "the routed output is already reduced by the combine kernel")
    return None


def size_refusal(
    tail: Tail,
    config: LatentMoEConfig,
    tp_size: int,
    tokens: int | None = None,
    dtype: torch.dtype | None = None,
) -> Refusal | None:
    """Why the tail's function cannot run on these sizes, whatever kind of layer asks; also on one rank."""
    if tail.rows == "own" and config.hidden_size % tp_size:
        text = f"hidden size {config.hidden_size} is not divisible by tp {tp_size}"
        return Refusal("hidden_not_divisible", text)
    if tail.dtypes is not None and not tail.takes(dtype):
        known, name = " and ".join(map(_dtype_name, tail.dtypes)), _dtype_name(dtype)
        return Refusal("tail_cannot_run", f"{tail.name} takes {known}; it does not take {name}")
    own = tail.refuse(config, tp_size, tokens) if tokens is not None else None
    return None if own is None else Refusal("tail_cannot_run", own)


def _dtype_name(dtype: torch.dtype | None) -> str:
    return str(dtype).removeprefix("torch.")


def folds_gain(asked: str, config: LatentMoEConfig, tp_size: int) -> bool:
    """Whether a layer that ends with the tail `asked` (AUTO: any) is best loaded with the norm's gain folded into W.

    Only where a tail that gains by it can run: elsewhere the weights stay as they are.
    """
    tails = TAILS.values() if asked == AUTO else [TAILS[asked]]
    # Asked for one token: such a tail's own condition is about the machine and the sizes.
    return any(tail.folds_gain and refusal(tail, config, tp_size, tokens=1) is None for tail in tails)


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
    def rows_needed(cls, *_args: Any, **_runner_args: Any) -> str:
        """Which rows of the up-projection a rank must hold: "all", or its "own" H/tp."""
        return "all"

    @classmethod
    def folds_gain(cls, *_args: Any, **_runner_args: Any) -> bool:
        """Whether the latent norm's gain is to be folded into the up-projection when the weights load."""
        return False

    def decide(self, _tokens: int, _tail: str | None = None) -> Decision:
        """Which tail ends a step of this many tokens."""
        return Decision("replicated", "replicated")

    def forward(self, x: torch.Tensor, router_logits: torch.Tensor) -> torch.Tensor:
        """x [T, H], router_logits [T, E] -> [T, H], the same on every rank.

        In a sequence-parallel layer T counts this rank's own tokens, and so does the result.
        """
        return self.finish(*self.partials(x, router_logits))

    def partials(
        self, x: torch.Tensor, router_logits: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """This rank's partial sums before the tail: routed [T, L] and shared [T, H] (None: no shared experts)."""
        if self.config.sequence_parallel:
            x, router_logits = self.tp.all_gather(x), self.tp.all_gather(router_logits)  # [T, H], [T, E]
        weights, ids = self.router(router_logits)  # [T, K], [T, K]
        latent = x if self.routed_input_transform is None else self.routed_input_transform(x)  # [T, L]
        routed = self.experts(latent, weights, ids)  # [T, L], partial
        shared = None if self.shared_experts is None else self.shared_experts(x)  # [T, H], partial
        return self._combine(routed, shared)

    def _combine(self, routed, shared):
        if self.config.sequence_parallel:
            # Each rank ends with its own tokens, complete.
            scattered = None if shared is None else self.tp.reduce_scatter(shared)  # [T/tp, H]
            return self.tp.reduce_scatter(routed), scattered  # [T/tp, L], [T/tp, H]
        if self.output_is_reduced:
            # Stands for a combine kernel that reduces on its way.
            routed = self.tp.all_reduce(routed)  # [T, L]
        return routed, shared

    def finish(
        self, routed: torch.Tensor, shared: torch.Tensor | None, tail: str | None = None
    ) -> torch.Tensor:
        """The tail: partials -> out [T, H]. May overwrite both."""
        self.last = self.decide(routed.shape[0], tail)
        return self.replicated_tail(routed, shared)

    def replicated_tail(self, routed: torch.Tensor, shared: torch.Tensor | None) -> torch.Tensor:
        """The tail for every kind of layer: whole up-projection on every rank, whatever has to be reduced."""
        transform: Any = self.routed_output_transform
        if transform is None:
            return self._plain_tail(routed, shared)
        weight = transform.rows("all")  # [H, L]
        if self._is_standard and shared is not None:
            return replicated(routed, shared, weight, transform.norm, self.tp)
        latent = self._reduce(routed, already=self.output_is_reduced)  # [T, L]
        latent = latent * self.config.runner_scale  # [T, L]
        projected = apply_norm(transform.norm, latent) @ weight.t()  # [T, H]
        return projected if shared is None else projected + self._reduce(shared)

    @property
    def _is_standard(self) -> bool:
        special = self.config.sequence_parallel or self.output_is_reduced
        return not special and self.config.runner_scale == 1.0

    def _plain_tail(self, routed, shared) -> torch.Tensor:
        # Nothing stands between the two sums: one all-reduce does for both.
        if self.output_is_reduced:
            out = routed * self.config.runner_scale  # [T, H]: without an up-projection L is H
            return out if shared is None else out + self._reduce(shared)
        out = routed * self.config.runner_scale  # [T, H]
        return self._reduce(out if shared is None else out + shared)

    def _reduce(self, x, already: bool = False) -> torch.Tensor:
        return x if already or self.config.sequence_parallel else self.tp.all_reduce(x)


class ROCmLatentMoERunner(MoERunner):
    """Ends the layer with `tail` (a name in TAILS, or "auto"); with the replicated tail where that cannot run.

    `accumulate` says how `column_parallel` adds into the shared slice: the GEMM's "epilogue", or "add"; `kernels`
    whose norm and GEMM it runs: "torch", or "aiter" on ROCm, which implies the add. `choose` names the tail of a
    step for "auto" (`latent_moe.lab.cost.auto_tail.choose`); the runner knows neither recordings nor a cost model.
    `last` holds the latest decision with its reason. Raises InputError for an unknown tail, accumulate
    or kernels, for "auto" without `choose`, and for kernels that cannot run here.
    """

    def __init__(
        self,
        *args: Any,
        tail: str = DEFAULT,
        accumulate: str = "epilogue",
        kernels: str = "torch",
        choose: Choose | None = None,
        **kwargs: Any,
    ):
        super().__init__(*args, **kwargs)
        self.tail, self.choose = tail, choose
        self._chooser(tail)
        check_kernels(kernels)
        if accumulate not in ACCUMULATE:
            raise unknown("accumulate", accumulate, ACCUMULATE)
        self.accumulate, self.kernels = accumulate, kernels
        self.last = Decision(tail, tail)

    @classmethod
    def rows_needed(cls, config: LatentMoEConfig, tp_size: int, **runner_args: Any) -> str:
        """A rank keeps only its own rows when its one tail needs no others and nothing refuses that tail."""
        tail = runner_args.get("tail", DEFAULT)
        check_name(tail)
        if tail == AUTO or TAILS[tail].rows == "all":
            return "all"
        reduced = runner_args.get("output_is_reduced", False)
        refused = refusal(TAILS[tail], config, tp_size, output_is_reduced=reduced)
        return "all" if refused else "own"

    @classmethod
    def folds_gain(cls, config: LatentMoEConfig, tp_size: int, **runner_args: Any) -> bool:
        """Where the tail is one that gains by it, or `auto` may pick one: the others work with either form."""
        return folds_gain(runner_args.get("tail", DEFAULT), config, tp_size)

    def decide(self, tokens: int, tail: str | None = None, dtype: torch.dtype | None = None) -> Decision:
        """Which tail ends a step of `tokens` tokens; `tail` overrides the runner's own choice."""
        asked = tail or self.tail
        name, note = asked, None
        chooser = self._chooser(asked)
        if chooser is not None:
            name, note = chooser(tokens, self.config, self.tp)
            # Recordings are of bf16: a tail that does not take this dtype gives way to the change's own.
            name = name if TAILS[name].takes(dtype) else DEFAULT
        refused = refusal(
            TAILS[name],
            self.config,
            self.tp.size,
            has_up_projection=self.routed_output_transform is not None,
            output_is_reduced=self.output_is_reduced,
            tokens=tokens,
            dtype=dtype,
        )
        return Decision("replicated" if refused else name, asked, refused, note)

    def finish(
        self, routed: torch.Tensor, shared: torch.Tensor | None, tail: str | None = None
    ) -> torch.Tensor:
        """The tail: partials -> out [T, H]. May overwrite both."""
        self.last = self.decide(routed.shape[0], tail, routed.dtype)
        if self.last.tail == "replicated":
            return self.replicated_tail(routed, shared)
        chosen = TAILS[self.last.tail]
        transform: Any = self.routed_output_transform
        weight = transform.rows(chosen.rows)  # [H, L] or [H/tp, L]
        options = {name: getattr(self, name) for name in ("accumulate", "kernels") if name in chosen.options}
        return chosen.function(routed, shared, weight, transform.norm, self.tp, **options)

    def _chooser(self, tail: str) -> Choose | None:
        """What names the tail for "auto", None for a tail by name. Raises InputError for neither."""
        check_name(tail)
        if tail == AUTO and self.choose is None:
            raise InputError("tail 'auto' needs `choose`, a function that names the tail of a step")
        return self.choose if tail == AUTO else None


def make_runner(
    runner_cls: type[MoERunner] | None,
    config: LatentMoEConfig,
    tp: TensorParallel,
    parts: dict[str, Any],
    runner_args: dict[str, Any] | None = None,
) -> MoERunner:
    """The seam: a model names the class that runs its MoE layers; None is the baseline, `MoERunner`."""
    return (runner_cls or MoERunner)(config, tp, **parts, **(runner_args or {}))
