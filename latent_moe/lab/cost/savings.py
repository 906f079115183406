"""What a layer saves when one tail replaces another, from the cost model or from a recording."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from latent_moe.config import KIMI_K3, LatentMoEConfig
from latent_moe.errors import InputError
from latent_moe.lab.cost.hardware import Hardware
from latent_moe.lab.cost.tail import best_tail, measured_best, tail_cost
from latent_moe.lab.cost.tail_timings import Line, first_of_modes, leave_one_out_error, lines
from latent_moe.lab.cost.terms import Cost, least_known
from latent_moe.tail_variants.registry import AUTO


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
    shard_from: int = 1,
) -> Savings:
    """Savings from the cost model; AUTO is the best tail of each T. The candidate's tail runs from `shard_from` tokens up and
    the baseline's below. Raises InputError (when asked) as tail_cost does.
    """

    def cost(tail: str, tokens: int) -> Cost:
        best = tail == AUTO
        return (
            best_tail(tokens, tp, hardware, config) if best else tail_cost(tail, tokens, tp, hardware, config)
        )

    def saving(tokens: int, _decode: bool) -> Saving:
        before, after = (
            cost(tail, tokens) for tail in (baseline, candidate if tokens >= shard_from else baseline)
        )
        kind = least_known(term.kind for term in (*before.terms, *after.terms))
        return Saving(before.total_us - after.total_us, _error_us(before, after), kind)

    return saving


def _error_us(before: Cost, after: Cost) -> float | None:
    # A term that both tails have alike takes no part in the difference, and neither does its error.
    apart = set(before.terms) ^ set(after.terms)
    known = [term.us * term.fit_error for term in apart if term.fit_error is not None]
    return math.hypot(*known) if known else None


def constant(prefill_us: float, decode_us: float, kind: str = "measured") -> Savings:
    """The same two savings at every T: what anchoring on one concurrency gives."""
    return lambda _tokens, decode: Saving(decode_us if decode else prefill_us, None, kind)


def recorded(
    rows: Iterable[Mapping], tp: int, baseline: str, candidate: str, source: str = "the recording"
) -> Savings:
    """What the recording says a layer saves. Decode steps read graph rows, prefill steps eager rows, where both are; AUTO
    is the best tail there at each T.

    Raises InputError (when asked) where the recording, called `source`, has no rows of both tails at this tp near that T.
    """
    every = list(rows)
    rows = [row for row in every if row.get("tp") == tp]
    if not rows:
        known = ", ".join(sorted({str(row.get("tp")) for row in every})) or "none"
        raise InputError(f"{source} has no rows at tp {tp} (it has tp {known})")

    def saving(tokens: int, decode: bool) -> Saving:
        before, after = _pair(rows, tokens, "graph" if decode else "eager", (baseline, candidate), source)
        us = before.at(tokens) - after.at(tokens)
        errors = [line.at(tokens) * (leave_one_out_error(line.points) or 0) for line in (before, after)]
        # What was measured has an error too, which a recording of medians does not hold.
        exact = tokens in before.points and tokens in after.points
        kind = least_known((before.kind(tokens), after.kind(tokens)))
        return Saving(us, None if exact else math.hypot(*errors), kind)

    return saving


def _pair(
    rows: list[Mapping], tokens: int, mode: str, tails: tuple[str, str], source: str
) -> tuple[Line, Line]:
    for chosen in first_of_modes(mode):
        by_tail = {key[0]: line for key, line in lines(rows, chosen).items() if _reaches(line, tokens)}
        if AUTO in tails and by_tail.keys() - {tails[0], AUTO}:
            near = [row for row in rows if row["tail"] in by_tail]
            by_tail[AUTO] = by_tail[measured_best(near, tokens, chosen)]
        if all(tail in by_tail for tail in tails):
            return by_tail[tails[0]], by_tail[tails[1]]
    wanted = " or ".join("another tail for auto to take" if tail == AUTO else tail for tail in tails)
    raise InputError(f"{source} lacks {wanted} near {tokens} tokens")


def _reaches(line: Line, tokens: int) -> bool:
    # Read at most twice as far as it goes; a decode size that only the other mode has is better read there.
    return min(line.points) / 2 <= tokens <= 2 * max(line.points)
