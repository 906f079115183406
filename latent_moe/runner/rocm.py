"""The change: a runner that shards the tail over the tensor-parallel ranks wherever the layer allows it.

T tokens, H hidden, L latent, tp ranks.
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch

from latent_moe.config import LatentMoEConfig
from latent_moe.errors import InputError
from latent_moe.parallel import TensorParallel
from latent_moe.runner.base import Decision, MoERunner
from latent_moe.runner.eligibility import folds_gain, refusal
from latent_moe.tail_variants.aiter import check_kernels
from latent_moe.tail_variants.registry import TAILS
from latent_moe.tails import ACCUMULATE

# (tokens, config, tp) -> (the name of a tail that can run there, why in one line).
Choose = Callable[[int, LatentMoEConfig, TensorParallel], tuple[str, str]]


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
        tail: str = "column_parallel",
        accumulate: str = "epilogue",
        kernels: str = "torch",
        choose: Choose | None = None,
        **kwargs: Any,
    ):
        super().__init__(*args, **kwargs)
        self.choose = choose
        self._check(tail)
        check_kernels(kernels)
        if accumulate not in ACCUMULATE:
            raise InputError(f"accumulate {accumulate!r} is none of {', '.join(ACCUMULATE)}")
        self.tail, self.accumulate, self.kernels = tail, accumulate, kernels
        self.last = Decision(tail, tail)

    @classmethod
    def rows_needed(cls, config: LatentMoEConfig, tp_size: int, **runner_args: Any) -> str:
        """A rank keeps only its own rows when its one tail needs no others and nothing refuses that tail."""
        tail = runner_args.get("tail", "column_parallel")
        _check(tail)
        if tail == "auto" or TAILS[tail].rows == "all":
            return "all"
        reduced = runner_args.get("output_is_reduced", False)
        refused = refusal(TAILS[tail], config, tp_size, output_is_reduced=reduced)
        return "all" if refused else "own"

    @classmethod
    def folds_gain(cls, config: LatentMoEConfig, tp_size: int, **runner_args: Any) -> bool:
        """Where the tail is one that gains by it, or `auto` may pick one: the others work with either form."""
        return folds_gain(runner_args.get("tail", "column_parallel"), config, tp_size)

    def decide(self, tokens: int, tail: str | None = None, dtype: torch.dtype | None = None) -> Decision:
        """Which tail ends a step of `tokens` tokens; `tail` overrides the runner's own choice."""
        asked = tail or self.tail
        choose = self._check(asked)
        name, note = asked, None
        if choose is not None:
            name, note = choose(tokens, self.config, self.tp)
            # Recordings are of bf16: a tail that does not take this dtype gives way to the change's own.
            name = name if TAILS[name].takes(dtype) else "column_parallel"
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

    def finish(self, routed, shared, tail: str | None = None) -> torch.Tensor:
        """The tail: partials -> out [T, H]. May overwrite both."""
        self.last = self.decide(routed.shape[0], tail, routed.dtype)
        if self.last.tail == "replicated":
            return self.replicated_tail(routed, shared)
        chosen = TAILS[self.last.tail]
        transform: Any = self.routed_output_transform
        weight = transform.rows(chosen.rows)  # [H, L] or [H/tp, L]
        return chosen.function(
            routed, shared, weight, transform.norm, self.tp, **self._options(chosen.function)
        )

    def _check(self, tail: str) -> Choose | None:
        """What chooses for "auto", None for a tail by name."""
        _check(tail)
        if tail == "auto" and self.choose is None:
            raise InputError("tail 'auto' needs `choose`, a function that names the tail of a step")
        return self.choose if tail == "auto" else None

    def _options(self, function) -> dict[str, Any]:
        takes = inspect.signature(function).parameters
        return {name: getattr(self, name) for name in ("accumulate", "kernels") if name in takes}


def _check(tail: str) -> None:
    if tail != "auto" and tail not in TAILS:
        raise InputError(f"unknown tail {tail!r} (there are: {', '.join(TAILS)}, auto)")
