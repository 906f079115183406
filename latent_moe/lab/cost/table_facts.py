"""What a published table says about itself, and what it leaves unsaid.

All of it follows from the printed figures; what needs a guess (the number of prompts) is an `inference` and says so.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from latent_moe.errors import InputError
from latent_moe.lab.cost.predict import (
    ArmRow,
    Setup,
    baseline_rows,
    changes,
    implied,
    of_arm,
    prefill_step_ms,
    prefill_steps_in_a_life,
)


@dataclass(frozen=True)
class RowFacts:
    """One row against itself.

    `total_over_output` is (ISL + OSL)/OSL when the lengths are exact. `in_flight` is Little's law, request rate times
    mean time of a request; the end of a run, when no request replaces the ones that end, leaves it `drain_pct` short
    of the concurrency.
    """

    concurrency: int
    arm: str
    total_over_output: float | None
    req_per_s: float
    in_flight: float
    drain_pct: float


def row_facts(row: ArmRow) -> RowFacts:
    """The facts of one row; the request rate is taken from the token rate, which is printed with more digits."""
    output = row.metrics.get("output_tok_per_s")
    rate = row.metrics["total_tok_per_s"] / (row.isl + row.osl)
    in_flight = rate * row.e2e_ms / 1e3
    return RowFacts(
        concurrency=row.concurrency,
        arm=row.arm,
        total_over_output=row.metrics["total_tok_per_s"] / output if output else None,
        req_per_s=rate,
        in_flight=in_flight,
        drain_pct=100 * (1 - in_flight / row.concurrency),
    )


def rounding_pp(before: ArmRow, after: ArmRow, digits: int = 3) -> dict[str, float]:
    """The request rate's change as printed and unrounded, and how far rounding to `digits` decimals can move it.

    Raises InputError when a row has no printed request rate.
    """
    if "req_per_s" not in before.metrics or "req_per_s" not in after.metrics:
        raise InputError("the rows have no req_per_s to look at")
    half = 0.5 * 10**-digits
    printed = before.metrics["req_per_s"], after.metrics["req_per_s"]
    unrounded = row_facts(before).req_per_s, row_facts(after).req_per_s
    return {
        "printed_pct": 100 * (printed[1] / printed[0] - 1),
        "unrounded_pct": 100 * (unrounded[1] / unrounded[0] - 1),
        "rounding_pp": 100 * (half / printed[0] + half * printed[1] / printed[0] ** 2),
    }


def check_deltas(
    rows: list[ArmRow], deltas: Iterable[Mapping[str, str]], setup: Setup
) -> dict[int, dict[str, float]]:
    """Printed per cent changes less those of the printed figures, percentage points, by concurrency and metric.

    `deltas` are rows of a CSV with concurrency and one column per metric, named as the metric without _ms, ending
    in _pct.
    """
    baseline, candidate = baseline_rows(rows, setup.baseline), of_arm(rows, setup.candidate)
    pairs = {key[2]: changes(baseline[key].metrics, candidate[key].metrics) for key in candidate}
    return {int(row["concurrency"]): _compare(row, pairs) for row in deltas}


def _compare(row: Mapping[str, str], pairs: Mapping[int, Mapping[str, float]]) -> dict[str, float]:
    own = pairs[int(row["concurrency"])]
    named = {name.removesuffix("_ms") + "_pct": name for name in own}
    return {
        named[column]: float(value) - own[named[column]] for column, value in row.items() if column in named
    }


def prompts_inferred(row: ArmRow, step_ms: float, budget: int) -> dict[str, Any]:
    """An inference, not a fact: about how many prompts the run had per request in flight, from the drain at its end.

    The requests of a wave end as they began, spread over n steps; behind the last wave no prefill follows, so these
    are decode steps of (E2E - n P)/(OSL - 1) each, and half of them a place stands empty on average. Over a run of
    w waves that makes a drain of n d / (2 w E2E). Readings of the end that differ by a factor of two fit as well.
    """
    n = prefill_steps_in_a_life(row.concurrency, row.isl, budget)
    decode_ms = (row.e2e_ms - n * step_ms) / (row.osl - 1)
    drain = row_facts(row).drain_pct / 100
    known = drain > 0 and decode_ms > 0
    return {
        "kind": "inference",
        "prompts_over_concurrency": n * decode_ms / 2 / row.e2e_ms / drain if known else None,
    }


def implied_savings(rows: list[ArmRow], setup: Setup) -> list[dict[str, float]]:
    """What each pair of rows would need the two savings to be, us per layer (see predict.implied).

    Scatter between the rows is what one closed form with two constants leaves unexplained.
    """
    baseline, candidate = baseline_rows(rows, setup.baseline), of_arm(rows, setup.candidate)
    step_ms = prefill_step_ms(baseline.values(), setup.budget)
    implied_us = []
    for key in sorted(candidate):
        saving = implied(baseline[key], candidate[key], step_ms, setup)
        prefill, decode = saving(setup.budget, False), saving(key[2], True)
        implied_us.append({"concurrency": key[2], "prefill_us": prefill.us, "decode_us": decode.us})
    return implied_us


def end_to_end_fit(rows: list[ArmRow], setup: Setup, decode_us=lambda _concurrency: 0.0) -> dict[str, float]:
    """A diagnosis, never a prediction: dP and a decode saving that fit the end-to-end changes of all pairs best.

    Least squares on the relative change of E2E with dd = decode_us(C) + extra, which uses no P at all: it tells
    whether the TTFT's saving and the throughput's are one. Returns prefill_us, extra_decode_us per layer.
    """
    baseline, candidate = baseline_rows(rows, setup.baseline), of_arm(rows, setup.candidate)
    if len({key[2] for key in candidate}) < 2:
        raise InputError(
            "two pairs of rows at different concurrencies are needed to tell the two savings apart"
        )
    steps, changes_seen = [], []
    for key, after in candidate.items():
        before = baseline[key]
        n = prefill_steps_in_a_life(before.concurrency, before.isl, setup.budget)
        share = setup.layers / before.e2e_ms
        steps.append((n * share, (before.osl - 1 - n) * share))
        expected = steps[-1][1] * decode_us(before.concurrency)
        changes_seen.append(1e3 * (before.e2e_ms - after.e2e_ms) / before.e2e_ms - expected)
    prefill_us, extra_us = np.linalg.lstsq(np.array(steps), np.array(changes_seen), rcond=None)[0]
    return {"prefill_us": float(prefill_us), "extra_decode_us": float(extra_us)}
