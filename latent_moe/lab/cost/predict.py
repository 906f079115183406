"""The end-to-end change from two savings: a closed form over a throughput table's baseline rows.

C requests in flight, ISL and OSL tokens, B tokens a step. In one request's life n = C ISL / B full prefill steps
run, the other OSL - 1 - n steps decode. dP is what a full prefill step saves (the tail's saving at T = B times the
MoE layers), dd what a decode step saves (at T = C), P the time of a full prefill step:

    E2E' = E2E - n dP - (OSL - 1 - n) dd      throughput' = throughput E2E / E2E'
    TTFT' = TTFT (1 - dP / P)                 TPOT' = (E2E' - TTFT') / (OSL - 1)

A step with x prompt tokens counts as x/B of a full prefill step (chunked prefill: decoding requests take one token each,
prompts fill the rest in order of arrival). It stops holding when n comes near OSL - 1 (refused beyond), when prompts are longer than B (a first token then waits
for more than its share of steps), and for P when the waves of requests are staggered (see `prefill_step_ms`).
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import mean, median

from latent_moe.errors import InputError
from latent_moe.lab.cost.savings import Saving, Savings, constant

SCORED = ("total_tok_per_s", "mean_ttft_ms", "mean_tpot_ms")
# Rows whose estimate of P is within this part of the largest count as rows whose waves stay together.
TOGETHER = 0.1
# Counting goes step by step; a table whose prompts take more steps than this is no server's.
MOST_STEPS = 100_000
# Prefill steps over decode steps of a request: what an anchor's error of the prefill saving is thrown at the decode saving
# with. Anchored on the published row at 128 (0.067) the other four are missed by 2.2 points, on 64 (0.032) by 0.3.
MOST_LEVERAGE = 0.05


@dataclass(frozen=True)
class ArmRow:
    """One arm at one concurrency; `metrics` by name, units in the names."""

    isl: int
    osl: int
    concurrency: int
    arm: str
    metrics: dict[str, float]

    @property
    def key(self) -> tuple[int, int, int]:
        """What pairs a baseline row with a candidate row."""
        return self.isl, self.osl, self.concurrency

    @property
    def e2e_ms(self) -> float:
        """Mean time of a request: TTFT + (OSL - 1) TPOT."""
        return self.metrics["mean_ttft_ms"] + (self.osl - 1) * self.metrics["mean_tpot_ms"]


def of_arm(rows: Iterable[ArmRow], arm: str) -> dict[tuple[int, int, int], ArmRow]:
    """The rows of one arm by (isl, osl, concurrency)."""
    return {row.key: row for row in rows if row.arm == arm}


def baseline_rows(rows: Iterable[ArmRow], arm: str) -> dict[tuple[int, int, int], ArmRow]:
    """The baseline's rows; every other row needs its own. Raises InputError naming what is missing."""
    rows = list(rows)
    baseline = of_arm(rows, arm)
    alone = sorted({row.key for row in rows} - baseline.keys())
    if alone:
        isl, osl, concurrency = alone[0]
        raise InputError(f"no baseline row {arm!r} at isl {isl}, osl {osl}, concurrency {concurrency}")
    return baseline


@dataclass(frozen=True)
class Setup:
    """How the table was served: ranks, MoE layers, token budget of a step, names of the two configurations."""

    tp: int = 8
    layers: int = 92
    budget: int = 16384
    baseline: str = "main"
    candidate: str = "PR"


@dataclass(frozen=True)
class Predicted:
    """One concurrency: metrics and per cent changes; the published change and the error where there is one."""

    row: ArmRow
    metrics: dict[str, float]
    delta_pct: dict[str, float]
    uncertainty_pp: dict[str, float | None]
    prefill_us: float
    decode_us: float
    kind: str
    published_pct: dict[str, float] | None = None
    anchor: bool = False
    notes: tuple[str, ...] = ()

    @property
    def error_pp(self) -> dict[str, float] | None:
        """Predicted less published change, percentage points."""
        if self.published_pct is None:
            return None
        return {name: self.delta_pct[name] - self.published_pct[name] for name in self.published_pct}


@dataclass(frozen=True)
class Prediction:
    """All rows of a table, with P and the mean absolute errors over the rows that were predicted, not anchored on."""

    rows: tuple[Predicted, ...]
    prefill_step_ms: float

    def mae_pp(self) -> dict[str, float | None]:
        """Mean absolute error of the predicted change, percentage points, by metric."""
        return self._mean(lambda row, name: abs(row.error_pp[name]))

    def no_change_pp(self) -> dict[str, float | None]:
        """What predicting no change at all would score."""
        return self._mean(lambda row, name: abs(row.published_pct[name]))

    def baselines_pp(self) -> dict[str, dict[str, float | None]]:
        """What simpler answers score on the same rows: no change; each row by a copy of another (mean over all choices);
        the best constant, fitted to these very rows."""
        scored = [row.published_pct for row in self.rows if row.published_pct is not None and not row.anchor]
        known = {name: [row[name] for row in scored] for name in SCORED}
        return {
            "no_change": self.no_change_pp(),
            "copied_row": {name: _copied(values) for name, values in known.items()},
            "constant": {name: _around_median(values) for name, values in known.items()},
        }

    def _mean(self, of) -> dict[str, float | None]:
        held = [row for row in self.rows if row.published_pct is not None and not row.anchor]
        return {name: mean(of(row, name) for row in held) if held else None for name in SCORED}


def check_budget(concurrency: int, isl: int, osl: int, budget: int) -> None:
    """Raise InputError outside what the closed form describes."""
    if min(concurrency, isl, budget) < 1 or osl < 2:
        raise InputError(
            "concurrency, input length and token budget must be at least 1, output length at least 2"
        )
    if budget <= concurrency:
        raise InputError(
            f"a budget of {budget} tokens leaves no prompt tokens beside {concurrency} decoding requests"
        )
    steps = prefill_steps_in_a_life(concurrency, isl, budget)
    if steps > osl - 1:
        raise InputError(
            f"{steps:g} prefill steps do not fit the {osl - 1} steps of a request's life: no closed form there"
        )


def prefill_steps_in_a_life(concurrency: int, isl: int, budget: int) -> float:
    """n = C ISL / B: while one request lives, all C prompts are prefilled once."""
    return concurrency * isl / budget


def steps_to_first_token(concurrency: int, isl: int, budget: int) -> float:
    """Mean over C prompts that arrive at once of the full prefill steps until the first token.

    The first 2 B/ISL prompts would take one step and so on, were it not for the decode tokens of the prompts that
    are done, which take part of each later step's budget: 2.75 for C = 8, 4.875 for C = 16 at 8192 of 16384 tokens.
    An upper bound when the prompts do not arrive at once: staggered ones wait for fewer.
    """
    if budget <= concurrency:
        raise InputError(
            f"a budget of {budget} tokens leaves no prompt tokens beside {concurrency} decoding requests"
        )
    if concurrency * isl > MOST_STEPS * budget:
        raise InputError(
            f"{concurrency} prompts of {isl} tokens do not fit {MOST_STEPS} steps of {budget} tokens"
        )
    clock, prefilled, done, waited = 0.0, 0, 0, 0.0
    while done < concurrency:
        room = min(budget - done, concurrency * isl - prefilled)
        prefilled += room
        clock += room / budget
        finished = prefilled // isl - done
        waited += finished * clock
        done += finished
    return waited / concurrency


def _copied(values: list[float]) -> float | None:
    gaps = [abs(left - right) for i, left in enumerate(values) for right in values[:i]]
    return mean(gaps) if gaps else None


def _around_median(values: list[float]) -> float | None:
    return mean(abs(value - median(values)) for value in values) if values else None


def prefill_step_ms(baseline: Iterable[ArmRow], budget: int) -> float:
    """P: mean TTFT over the mean number of prefill steps until a first token, from baseline rows alone.

    The number is that of requests that arrive together. Where the waves are staggered requests wait for fewer
    steps and the quotient falls short, so rows far below the largest quotient are left out.
    """
    quotients = [
        row.metrics["mean_ttft_ms"] / steps_to_first_token(row.concurrency, row.isl, budget)
        for row in baseline
    ]
    if not quotients:
        raise InputError("no baseline rows to read the time of a prefill step from")
    return mean(value for value in quotients if value >= (1 - TOGETHER) * max(quotients))


def predict_row(row: ArmRow, step_ms: float, savings: Savings, setup: Setup) -> Predicted:
    """The candidate's row from the baseline's `row`. Raises InputError where the closed form does not hold."""
    check_budget(row.concurrency, row.isl, row.osl, setup.budget)
    prefill, decode = savings(setup.budget, False), savings(row.concurrency, True)
    metrics = _shifted(row, step_ms, prefill.us, decode.us, setup)
    return Predicted(
        row=row,
        metrics=metrics,
        delta_pct=changes(row.metrics, metrics),
        uncertainty_pp=_uncertainty(row, step_ms, prefill, decode, setup),
        prefill_us=prefill.us,
        decode_us=decode.us,
        kind=max(prefill.kind, decode.kind, key=("measured", "interpolated", "modelled").index),
        notes=tuple(limits(row, setup.budget)),
    )


def shifted_times(row: ArmRow, step_ms, prefill_us, decode_us, setup: Setup) -> tuple:
    """(E2E', TTFT', TPOT') in ms; the step time and the savings may be arrays of one length."""
    n = prefill_steps_in_a_life(row.concurrency, row.isl, setup.budget)
    step_saving, decode_saving = (us * setup.layers / 1e3 for us in (prefill_us, decode_us))  # ms a step
    e2e = row.e2e_ms - n * step_saving - (row.osl - 1 - n) * decode_saving
    ttft = row.metrics["mean_ttft_ms"] * (1 - step_saving / step_ms)
    return e2e, ttft, (e2e - ttft) / (row.osl - 1)


def _shifted(
    row: ArmRow, step_ms: float, prefill_us: float, decode_us: float, setup: Setup
) -> dict[str, float]:
    e2e, ttft, tpot = shifted_times(row, step_ms, prefill_us, decode_us, setup)
    if e2e <= ttft or ttft <= 0:
        raise InputError(
            f"concurrency {row.concurrency}: the modelled saving exceeds the time there is to save: is the table of this hardware?"
        )
    faster = row.e2e_ms / e2e
    rates = {name: value * faster for name, value in row.metrics.items() if name.endswith("_per_s")}
    times = {"mean_ttft_ms": ttft, "mean_tpot_ms": tpot}
    if "mean_itl_ms" in row.metrics:
        # With one token a step the mean gap between tokens is the time per output token.
        times["mean_itl_ms"] = row.metrics["mean_itl_ms"] * tpot / row.metrics["mean_tpot_ms"]
    return rates | times


def _uncertainty(
    row: ArmRow, step_ms: float, prefill: Saving, decode: Saving, setup: Setup
) -> dict[str, float | None]:
    if prefill.error_us is None or decode.error_us is None:
        return dict.fromkeys(SCORED)
    middle = _shifted(row, step_ms, prefill.us, decode.us, setup)
    moved = (
        _shifted(row, step_ms, prefill.us + prefill.error_us, decode.us, setup),
        _shifted(row, step_ms, prefill.us, decode.us + decode.error_us, setup),
    )
    return {
        name: math.hypot(*(100 * (other[name] - middle[name]) / row.metrics[name] for other in moved))
        for name in SCORED
    }


def traffic_row(
    concurrency: int, isl: int, osl: int, step_ms: float, decode_ms: float, budget: int, arm: str = "main"
) -> ArmRow:
    """A baseline row for a traffic pattern on a machine without a table: from P and the time of a decode step.

    Requests are taken to arrive together. Raises InputError where the closed form does not hold.
    """
    check_budget(concurrency, isl, osl, budget)
    n = prefill_steps_in_a_life(concurrency, isl, budget)
    e2e = n * step_ms + (osl - 1 - n) * decode_ms
    ttft = step_ms * steps_to_first_token(concurrency, isl, budget)
    if not 0 < ttft < e2e:
        raise InputError(
            f"a prefill step of {step_ms} ms and a decode step of {decode_ms} ms make no request"
        )
    metrics = {"total_tok_per_s": 1e3 * concurrency * (isl + osl) / e2e, "mean_ttft_ms": ttft}
    return ArmRow(isl, osl, concurrency, arm, metrics | {"mean_tpot_ms": (e2e - ttft) / (osl - 1)})


def changes(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Per cent change of every metric that both have."""
    return {name: 100 * (after[name] / before[name] - 1) for name in before if name in after}


def limits(row: ArmRow, budget: int) -> list[str]:
    """Where the closed form is near the edge of what it describes, in words."""
    notes = []
    n = prefill_steps_in_a_life(row.concurrency, row.isl, budget)
    if n > (row.osl - 1) / 2:
        notes.append(f"{n:g} of {row.osl - 1} steps are prefill: few decode steps are left")
    if row.isl > budget:
        notes.append(f"prompts of {row.isl} tokens are longer than the budget of {budget}")
    return notes


def two_constants_pp(rows: list[ArmRow], setup: Setup) -> dict[str, float | None]:
    """What the closed form scores with two constants fitted to the very rows: the mean of what each pair implies."""
    baseline, candidate = baseline_rows(rows, setup.baseline), of_arm(rows, setup.candidate)
    if not candidate:
        return dict.fromkeys(SCORED)
    step_ms = prefill_step_ms(baseline.values(), setup.budget)
    pairs = [implied(baseline[key], after, step_ms, setup) for key, after in candidate.items()]
    fitted = constant(
        mean(pair(setup.budget, False).us for pair in pairs), mean(pair(1, True).us for pair in pairs)
    )
    return predict_table(rows, fitted, setup).mae_pp()


def predict_rows(baseline: Iterable[ArmRow], savings: Savings, setup: Setup) -> Prediction:
    """Predict every baseline row. Sees no candidate row: it is given none."""
    rows = list(baseline)
    step_ms = prefill_step_ms(rows, setup.budget)
    return Prediction(tuple(predict_row(row, step_ms, savings, setup) for row in rows), step_ms)


def predict_table(
    rows: list[ArmRow], savings: Savings, setup: Setup, anchor: int | None = None
) -> Prediction:
    """Predict a table's candidate rows and set the published ones beside them.

    Candidate rows are used for the errors alone, except the rows at concurrency `anchor`, which then fix the two
    savings in place of `savings`. Raises InputError for missing baseline rows or an anchor that is not there.
    """
    baseline = baseline_rows(rows, setup.baseline)
    candidate = of_arm(rows, setup.candidate)
    if anchor is not None:
        savings = anchored(baseline, candidate, setup, anchor)
    prediction = predict_rows([baseline[key] for key in sorted(baseline)], savings, setup)
    scored = [_beside(row, candidate.get(row.row.key), anchor) for row in prediction.rows]
    return replace(prediction, rows=tuple(scored))


def _beside(predicted: Predicted, published: ArmRow | None, anchor: int | None) -> Predicted:
    if published is None:
        return predicted
    known = changes(predicted.row.metrics, published.metrics)
    shown = {name: known[name] for name in known if name in predicted.delta_pct}
    return replace(predicted, published_pct=shown, anchor=predicted.row.concurrency == anchor)


def anchored(
    baseline: Mapping[tuple, ArmRow], candidate: Mapping[tuple, ArmRow], setup: Setup, concurrency: int
) -> Savings:
    """The two savings that one concurrency's pair of rows implies, for use at every concurrency."""
    keys = [key for key in baseline if key[2] == concurrency and key in candidate]
    if not keys:
        raise InputError(f"no pair of rows at concurrency {concurrency} to anchor on")
    row, step_ms = baseline[keys[0]], prefill_step_ms(baseline.values(), setup.budget)
    n = prefill_steps_in_a_life(row.concurrency, row.isl, setup.budget)
    leverage = n / max(row.osl - 1 - n, 1)
    if leverage > MOST_LEVERAGE:
        raise InputError(
            f"concurrency {concurrency} is no anchor: with {n:g} prefill steps a request, 100 us of error in their saving "
            f"would move a decode step's by {100 * leverage:.1f} us: anchor on fewer requests in flight"
        )
    return implied(row, candidate[keys[0]], step_ms, setup)


def anchored_on(rows: list[ArmRow], setup: Setup, concurrency: int) -> Savings:
    """As `anchored`, from all rows of a table."""
    return anchored(baseline_rows(rows, setup.baseline), of_arm(rows, setup.candidate), setup, concurrency)


def implied(before: ArmRow, after: ArmRow, step_ms: float, setup: Setup) -> Savings:
    """dP from the TTFT, dd from what is left of the end-to-end change: per layer, in us."""
    n = prefill_steps_in_a_life(before.concurrency, before.isl, setup.budget)
    step = step_ms * (1 - after.metrics["mean_ttft_ms"] / before.metrics["mean_ttft_ms"])
    decode = (before.e2e_ms - after.e2e_ms - n * step) / (before.osl - 1 - n)
    return constant(step * 1e3 / setup.layers, decode * 1e3 / setup.layers)
