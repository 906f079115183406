"""What the parts of one MoE layer hold and compute, dense or latent: a table for notebooks and figures.

T tokens, H hidden, L latent (H where the layer is not latent), E experts, K experts per token, I expert width,
S shared width, tp ranks. A GEMM of [T, k] with [k, n] counts 2 T k n FLOP.
"""

from dataclasses import dataclass

from latent_moe.config import LatentMoEConfig
from latent_moe.lab.cost.tail import check_case


@dataclass(frozen=True)
class Part:
    """One part of the layer: parameters held, parameters that one token's computation touches."""

    name: str
    params: int
    active_params: int

    @property
    def flop_per_token(self) -> int:
        """A multiply and an add for every active parameter."""
        return 2 * self.active_params


def layer_parts(config: LatentMoEConfig) -> list[Part]:
    """The parts of one layer in the order in which a token meets them, all ranks together."""
    h, width = config.hidden_size, config.expert_input_size
    expert = 3 * config.expert_width * width
    parts = [Part("gate", config.num_experts * h, config.num_experts * h)]
    if config.is_latent:
        parts.append(Part("down-projection", width * h, width * h))
    parts.append(Part("routed experts", config.num_experts * expert, config.experts_per_token * expert))
    if config.shared_width:
        parts.append(Part("shared experts", 3 * config.shared_width * h, 3 * config.shared_width * h))
    if config.is_latent:
        parts.append(Part("up-projection", h * width, h * width))
    return parts


@dataclass(frozen=True)
class TailWork:
    """One rank's work in one layer's tail, bf16: bytes of W it reads, FLOP of its GEMM, bytes it gives all-reduces."""

    tail: str
    weight_bytes: int
    flop: int
    all_reduce_bytes: int


def tail_work(config: LatentMoEConfig, tokens: int, tp: int) -> list[TailWork]:
    """`replicated` and `column_parallel` side by side. Raises InputError as `check_case` does."""
    check_case(tokens, tp, config)
    h, width = config.hidden_size, config.expert_input_size
    sums = 2 * tokens * (width + h) if tp > 1 else 0
    return [
        TailWork(tail, 2 * width * rows, 2 * tokens * width * rows, sums)
        for tail, rows in (("replicated", h), ("column_parallel", h // tp))
    ]
