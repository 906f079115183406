"""A cost as a sum of named terms, each of which says how it is known; and what the parts of a layer hold and compute.

T tokens, H hidden, L latent (H where the layer is not latent), E experts, K experts per token, I expert width,
S shared width, tp ranks. A GEMM of [T, k] with [k, n] counts 2 T k n FLOP.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from latent_moe.config import LatentMoEConfig
from latent_moe.errors import InputError

# From best known to least: a sum is as well known as its least known term.
KINDS = ("measured", "interpolated", "modelled")


@dataclass(frozen=True)
class Term:
    """One part of a cost.

    `us` is what the part adds to the whole; `hidden_us` is what runs under another part and adds nothing.
    `kind` is measured, interpolated or modelled. `fit_error` is the relative error expected of `us` (0.1: ten per
    cent), None where nothing says it.
    """

    name: str
    us: float
    kind: str = "modelled"
    fit_error: float | None = None
    hidden_us: float = 0.0


@dataclass(frozen=True)
class Cost:
    """A tail's cost at one T and tp: its terms in order of execution."""

    tail: str
    tokens: int
    tp: int
    terms: tuple[Term, ...]

    @property
    def total_us(self) -> float:
        """What the tail takes, hidden parts left out."""
        return sum(term.us for term in self.terms)

    @property
    def kind(self) -> str:
        """How well the total is known: as its least known term."""
        return least_known(term.kind for term in self.terms)

    @property
    def fit_error(self) -> float | None:
        """Relative error of the total: the terms' errors added in quadrature; None if no term states one."""
        known = [term.us * term.fit_error for term in self.terms if term.fit_error is not None]
        return math.hypot(*known) / self.total_us if known and self.total_us else None

    def us(self, name: str) -> float:
        """The time of the terms called `name`."""
        return sum(term.us for term in self.terms if term.name == name)


def least_known(kinds: Iterable[str]) -> str:
    """The worst of some kinds of knowledge."""
    return max(kinds, key=KINDS.index)


def check_case(tokens: int, tp: int, config: LatentMoEConfig) -> None:
    """Raise InputError for what no tail can run."""
    if tokens < 1:
        raise InputError(f"tokens {tokens} must be at least 1")
    if tp < 1:
        raise InputError(f"tp {tp} is not a positive number of ranks")
    if not config.is_latent:
        raise InputError("the layer is not latent: it has no up-projection")
    if config.hidden_size % tp:
        raise InputError(f"tp {tp} does not divide the hidden size {config.hidden_size}")


@dataclass(frozen=True)
class LayerWork:
    """One part of the layer: parameters held, parameters that one token's computation touches."""

    name: str
    params: int
    active_params: int

    @property
    def flop_per_token(self) -> int:
        """A multiply and an add for every active parameter."""
        return 2 * self.active_params


def layer_parts(config: LatentMoEConfig) -> list[LayerWork]:
    """The parts of one layer in the order in which a token meets them, all ranks together."""
    h, width = config.hidden_size, config.expert_input_size
    expert = 3 * config.expert_width * width
    parts = [LayerWork("gate", config.num_experts * h, config.num_experts * h)]
    if config.is_latent:
        parts.append(LayerWork("down-projection", width * h, width * h))
    parts.append(LayerWork("routed experts", config.num_experts * expert, config.experts_per_token * expert))
    if config.shared_width:
        parts.append(LayerWork("shared experts", 3 * config.shared_width * h, 3 * config.shared_width * h))
    if config.is_latent:
        parts.append(LayerWork("up-projection", h * width, h * width))
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
