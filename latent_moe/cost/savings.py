"""What a layer saves when one tail replaces another, from the cost model or from a recording."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from latent_moe.config import KIMI_K3, LatentMoEConfig
from latent_moe.cost.hardware import Hardware
from latent_moe.cost.tail import tail_cost
from latent_moe.cost.terms import Cost, least_known


@dataclass(frozen=True)
class Saving:
    """us saved per layer at T tokens; `error_us` is its expected error, None where nothing says it."""

    us: float
    error_us: float | None
    kind: str


# (tokens of the step, whether it is a decode step) -> what a layer saves in it.
Savings = Callable[[int, bool], Saving]


def modelled(
    hardware: Hardware,
    tp: int,
    config: LatentMoEConfig = KIMI_K3,
    baseline: str = "replicated",
    candidate: str = "column_parallel",
) -> Savings:
    """Savings from the cost model. Raises InputError (when asked) as tail_cost does."""

    def saving(tokens: int, decode: bool) -> Saving:
        before = tail_cost(baseline, tokens, tp, hardware, config)
        after = tail_cost(candidate, tokens, tp, hardware, config)
        kind = least_known(term.kind for term in (*before.terms, *after.terms))
        return Saving(before.total_us - after.total_us, _error_us(before, after), kind)

    return saving


def _error_us(before: Cost, after: Cost) -> float | None:
    known = [term.us * term.fit_error for term in (*before.terms, *after.terms) if term.fit_error is not None]
    return math.hypot(*known) if known else None


def constant(prefill_us: float, decode_us: float, kind: str = "measured") -> Savings:
    """The same two savings at every T: what anchoring on one concurrency gives."""
    return lambda tokens, decode: Saving(decode_us if decode else prefill_us, None, kind)
