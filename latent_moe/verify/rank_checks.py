"""What every rank checks: each tail's error, the collectives it issued, the columns it wrote.

T tokens, H hidden, L latent, tp ranks.
"""

from dataclasses import dataclass, field
from typing import Any

import torch

from latent_moe.config import LatentMoEConfig
from latent_moe.layer import LatentMoE
from latent_moe.parallel import TensorParallel
from latent_moe.runner import Choose, ROCmLatentMoERunner
from latent_moe.tail_variants.registry import TAILS
from latent_moe.verify.reference import relative_error
from latent_moe.weights import SeededWeights


@dataclass
class Spy(TensorParallel):
    """A TensorParallel that keeps what each all-reduce was given."""

    given: list[torch.Tensor] = field(default_factory=list)

    @classmethod
    def on(cls, tp: TensorParallel) -> "Spy":
        """A spy on the same group."""
        return cls(tp.rank, tp.size, tp.group, tp.device, nodes=tp.nodes)

    def all_reduce(self, x: torch.Tensor, async_op: bool = False) -> Any:
        """As TensorParallel's, after a copy."""
        self.given.append(x.clone())  # [T, N]
        return super().all_reduce(x, async_op)


def check_rank(
    tp: TensorParallel, config: LatentMoEConfig, seed: int, cases, choose: Choose | None = None
) -> dict[str, Any]:
    """One rank's part: `cases` maps a dtype's name to (x [T, H] fp32, reference [T, H] float64)."""
    return {name: _check_dtype(tp, config, seed, choose, name, *case) for name, case in cases.items()}


def _check_dtype(tp, config, seed, choose: Choose | None, dtype_name: str, x, ref) -> dict[str, Any]:
    dtype = getattr(torch, dtype_name)
    spy = Spy.on(tp)
    weights = SeededWeights(config, seed, dtype)
    arguments = {"tail": "replicated", "choose": choose}
    layer = LatentMoE(config, spy, weights, runner_cls=ROCmLatentMoERunner, runner_args=arguments)
    routed, shared = layer.partials(x.to(tp.device, dtype))
    names = [*TAILS] if choose is None else [*TAILS, "auto"]
    tails = {name: _check_tail(layer.runner, name, routed, shared, ref) for name in names}
    return {"tails": tails, "own_columns": _own_columns(layer.runner, routed, shared)}


def _check_tail(runner, name: str, routed, shared, ref) -> dict[str, Any]:
    runner.tp.issued.clear()
    runner.tp.given.clear()
    out = runner.finish(routed.clone(), shared.clone(), tail=name)
    return {
        "rel_err": relative_error(out, ref),
        "ran": runner.last.tail,
        "eligible": runner.last.eligible,
        "reason": runner.last.reason,
        "note": runner.last.note,
        "collectives": [(one.kind, one.bytes) for one in runner.tp.issued],
    }


def _own_columns(runner, routed, shared) -> bool | None:
    """Whether column_parallel wrote this rank's H/tp columns of the shared partial, and no other column.

    Seen on what the final all-reduce is given; None where the tail does not run.
    """
    if not runner.decide(routed.shape[0], "column_parallel").eligible:
        return None
    runner.tp.given.clear()
    runner.finish(routed.clone(), shared.clone(), tail="column_parallel")
    before_reduce = runner.tp.given[-1]  # [T, H]
    changed = (before_reduce != shared).any(0)  # [H]
    own = torch.zeros_like(changed)  # [H]
    own[runner.tp.columns(shared.shape[1])] = True
    # A small sum may round away in bf16: not every own column need change, no other one may.
    return bool(changed[own].any() and not changed[~own].any())
