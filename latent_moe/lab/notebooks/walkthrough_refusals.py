"""Every rule of eligibility broken once, on real ranks: the tail that ran instead, why, and that its result is right.

T tokens, H hidden, tp ranks.
"""

from typing import Any

import torch

from latent_moe.config import TINY, LatentMoEConfig
from latent_moe.layer import LatentMoE
from latent_moe.weights import SeededWeights
from latent_moe.parallel import TensorParallel, launch
from latent_moe.runner import ROCmLatentMoERunner

TOKENS, SEED = 8, 5
# (what is broken, config, runner arguments, tp)
CASES: tuple[tuple[str, LatentMoEConfig, dict[str, Any], int], ...] = (
    ("nothing", TINY, {}, 2),
    ("not latent", TINY.replace(latent_size=None), {}, 2),
    # The experts' latent is as wide as the hidden size: without the up-projection the sums still add.
    ("up-projection taken out", TINY.replace(latent_size=TINY.hidden_size), {}, 2),
    ("one rank", TINY, {}, 1),
    ("H = 63", TINY.replace(hidden_size=63), {}, 2),
    ("no shared experts", TINY.replace(shared_width=0), {}, 2),
    ("sequence parallel", TINY.replace(sequence_parallel=True), {}, 2),
    (
        "factor 2.5 at the runner",
        TINY.replace(routed_scaling_factor=2.5, scale_routed_output=True),
        {},
        2,
    ),
    ("reduced by the combine kernel", TINY, {"output_is_reduced": True}, 2),
)


def refusals() -> list[dict[str, Any]]:
    """One dict per case: `broken`, `ran`, `code`, `reason`, `same_as_baseline` (bitwise equal to MoERunner's result).

    "nothing" is the control: there the sharded tail runs, equal up to rounding only.
    """
    found = []
    for tp in (2, 1):
        cases = [case[:3] for case in CASES if case[3] == tp]
        found += launch(_rank, tp, cases)[0]
    order = [case[0] for case in CASES]
    return sorted(found, key=lambda row: order.index(row["broken"]))


def _rank(tp: TensorParallel, cases) -> list[dict[str, Any]]:
    return [_case(tp, *case) for case in cases]


def _case(tp: TensorParallel, broken: str, config: LatentMoEConfig, arguments) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(SEED)
    x = torch.randn(TOKENS, config.hidden_size, generator=generator).to(tp.device)
    x = x[tp.columns(TOKENS)] if config.sequence_parallel else x
    weights = SeededWeights(config, SEED)
    layer = LatentMoE(config, tp, weights, runner_cls=ROCmLatentMoERunner, runner_args=arguments)
    baseline = LatentMoE(config, tp, weights, runner_args=arguments)
    if broken == "up-projection taken out":
        for one in (layer, baseline):
            one.runner.routed_output_transform = None
    same = torch.equal(layer(x), baseline(x))
    last = layer.runner.last
    return {
        "broken": broken,
        "ran": last.tail,
        "code": last.refusal.code if last.refusal else "",
        "reason": last.reason or "",
        "same_as_baseline": same,
    }
