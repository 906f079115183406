"""May this tail run on this layer? If not, why, in words a person can act on.

T tokens, H hidden, L latent, tp ranks of the tensor-parallel process group. The group's size decides, not the
experts' own tensor-parallel size: that is 1 under expert parallelism, where the tail still has tp ranks to use.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch

from latent_moe.config import LatentMoEConfig
from latent_moe.tail_variants.registry import TAILS, Tail


@dataclass(frozen=True)
class Refusal:
    """Why a tail cannot run: a stable code for programs, one line for people."""

    code: str
    text: str


class Layer(NamedTuple):
    """What a refusal may depend on."""

    tail: Tail
    config: LatentMoEConfig
    tp_size: int
    has_up_projection: bool
    output_is_reduced: bool


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
    """The first reason why `tail` cannot run on this layer, None when it can; `replicated` always can.

    `tokens` None asks about the layer alone, as when it is built: conditions on T are then left out.
    """
    if tail.name == "replicated":
        return None
    layer = Layer(tail, config, tp_size, has_up_projection, output_is_reduced)
    for code, applies, text in _RULES:
        if applies(layer):
            return Refusal(code, text(layer))
    if not tail.takes(dtype):
        return Refusal("tail_cannot_run", f"{tail.name} does not take {str(dtype).removeprefix('torch.')}")
    own = tail.refuse(config, tp_size, tokens) if tokens is not None else None
    return None if own is None else Refusal("tail_cannot_run", own)


def folds_gain(asked: str, config: LatentMoEConfig, tp_size: int) -> bool:
    """Whether a layer that ends with the tail `asked` ("auto": any) is best loaded with the norm's gain folded into W.

    Only where a tail that gains by it can run: elsewhere the weights stay as they are.
    """
    tails = TAILS.values() if asked == "auto" else [TAILS[asked]]
    # Asked for one token: such a tail's own condition is about the machine and the sizes.
    return any(tail.folds_gain and refusal(tail, config, tp_size, tokens=1) is None for tail in tails)


Rule = tuple[str, Callable[[Layer], bool], Callable[[Layer], str]]

_RULES: tuple[Rule, ...] = (
    (
        "not_latent",
        lambda a: not a.config.is_latent,
        lambda a: "the layer is not latent: its experts work on the hidden size",
    ),
    (
        "no_up_projection",
        lambda a: not a.has_up_projection,
        lambda a: "no up-projection: the routed output has no transform to shard",
    ),
    (
        "tp_1",
        lambda a: a.tp_size == 1,
        lambda a: "tp = 1: there are no other ranks to share the up-projection with",
    ),
    (
        "hidden_not_divisible",
        lambda a: a.tail.rows == "own" and a.config.hidden_size % a.tp_size != 0,
        lambda a: f"hidden size {a.config.hidden_size} is not divisible by tp {a.tp_size}",
    ),
    (
        "no_shared_experts",
        lambda a: a.config.shared_width == 0,
        lambda a: "no shared experts: there is no shared partial to accumulate into",
    ),
    (
        "sequence_parallel",
        lambda a: a.config.sequence_parallel,
        lambda a: "sequence-parallel layer: each rank ends its own tokens, nothing is reduced after the tail",
    ),
    (
        "routed_scaling",
        lambda a: a.config.runner_scale != 1.0,
        lambda a: f"routed scaling factor {a.config.runner_scale:g} is applied at the runner (!= 1.0)",
    ),
    (
        "output_is_reduced",
        lambda a: a.output_is_reduced,
        lambda a: "the routed output is already reduced by the combine kernel",
    ),
)
