"""90 % bands of a prediction: the constants over their ranges, the model's residuals, the machine's noise.

A constant with a range is drawn evenly from it, and both savings follow along straight lines between the savings at its
ends; each saving then errs by the residual that the model showed on recorded tails (normal); P grows by a share of the
staggering; and the table's own cells err as repeated runs do. All from figures that no scored table was looked at for.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from latent_moe.lab.cost.hardware import Constants, Hardware, built_in_constants
from latent_moe.lab.cost.predict import SCORED, ArmRow, Setup, shifted_times
from latent_moe.lab.cost.savings import Savings
from latent_moe.lab.results.distributions import NORMAL, t_quantile

DRAWS = 4000
CONFIDENCE = 0.9


@dataclass(frozen=True)
class PairNoise:
    """Spread of the log ratio of one pair of runs, by metric, and how many pairs stand behind a cell."""

    spread: Mapping[str, float]
    pairs: int = 1


def ranged_savings(
    machine: Hardware, savings_of: Callable[[Hardware], Savings], tokens: int, decode: bool
) -> dict[str, tuple[float, float]]:
    """{constant: (saving at the low end of its range, at the high end)}, us per layer, the others as they are."""
    ends = {}
    for name, (low, high) in machine.ranges.items():
        least, most = (savings_of(machine.replace(**{name: end})) for end in (low, high))
        ends[name] = (least(tokens, decode).us, most(tokens, decode).us)
    return ends


def sensitivity(
    machine: Hardware, savings_of: Callable[[Hardware], Savings], setup: Setup, concurrency: int
) -> list[dict[str, float | str]]:
    """One row a constant with a range: both savings per layer (us) at either end."""
    prefill = ranged_savings(machine, savings_of, setup.budget, False)
    decode = ranged_savings(machine, savings_of, concurrency, True)
    return [
        {
            "constant": name,
            "low": ends[0],
            "value": getattr(machine, name),
            "high": ends[1],
            "prefill_us_low": prefill[name][0],
            "prefill_us_high": prefill[name][1],
            "decode_us_low": decode[name][0],
            "decode_us_high": decode[name][1],
        }
        for name, ends in machine.ranges.items()
    ]


class Bands:
    """Draws for one prediction; `savings_of` gives the savings of a machine, None where a recording or a pair of rows does."""

    def __init__(
        self,
        machine: Hardware,
        savings: Savings,
        savings_of: Callable[[Hardware], Savings] | None,
        setup: Setup,
        constants: Constants | None = None,
        anchored: bool = False,
    ):
        self.machine, self.savings, self.savings_of, self.setup = machine, savings, savings_of, setup
        rows = built_in_constants() | dict(constants or {})
        self.residual = {kind: rows[f"model.{kind}_residual"].value for kind in ("prefill", "decode")}
        self.noise = PairNoise({name: rows[f"noise.{name}"].value for name in SCORED})
        staggering = rows["model.staggering"]
        random = np.random.default_rng(0)
        # An anchor's prefill saving is read off with the same P: its error takes itself back.
        latest = 1.0 if anchored or staggering.high is None else staggering.high
        self.step_factor = random.uniform(1.0, latest, DRAWS)
        self.places = {name: random.uniform(0, 1, DRAWS) for name in machine.ranges}
        self.residual_draws = {kind: random.standard_normal(DRAWS) for kind in self.residual}
        self.recorded_draws = {kind: random.standard_normal(DRAWS) for kind in self.residual}
        self.noise_draws = {name: random.standard_normal(DRAWS) for name in SCORED}

    def of_row(self, row: ArmRow, step_ms: float, noise: PairNoise | None = None) -> dict[str, list[float]]:
        """[low, high] in per cent by metric: where nine in ten measured changes of this row should lie."""
        prefill = self._draws(self.setup.budget, decode=False)
        decode = self._draws(row.concurrency, decode=True)
        e2e, ttft, tpot = shifted_times(row, step_ms * self.step_factor, prefill, decode, self.setup)
        metrics = row.metrics
        ratios = {
            "total_tok_per_s": row.e2e_ms / e2e,
            "mean_ttft_ms": ttft / metrics["mean_ttft_ms"],
            "mean_tpot_ms": tpot / metrics["mean_tpot_ms"],
        }
        return {name: self._band(ratios[name], name, noise or self.noise) for name in SCORED}

    def _draws(self, tokens: int, decode: bool) -> np.ndarray:
        saving = self.savings(tokens, decode)
        kind = "decode" if decode else "prefill"
        us = np.full(DRAWS, saving.us)
        if self.savings_of is None:
            us += (saving.error_us or 0.0) * self.recorded_draws[kind]
        else:
            ranged = ranged_savings(self.machine, self.savings_of, tokens, decode)
            for name, (low_us, high_us) in ranged.items():
                low, high = self.machine.ranges[name]
                at = low + self.places[name] * (high - low)
                us += np.interp(at, (low, getattr(self.machine, name), high), (low_us, saving.us, high_us))
                us -= saving.us
        return us + self.residual[kind] * abs(saving.us) * self.residual_draws[kind]

    def _band(self, ratios: np.ndarray, metric: str, noise: PairNoise) -> list[float]:
        # Few pairs: their spread is itself uncertain, so the noise is Student's.
        wider = (
            t_quantile((1 + CONFIDENCE) / 2, noise.pairs - 1) / NORMAL.inv_cdf((1 + CONFIDENCE) / 2)
            if noise.pairs > 1
            else 1.0
        )
        error = wider * noise.spread[metric] / math.sqrt(noise.pairs) * self.noise_draws[metric]
        low, high = np.quantile(ratios * np.exp(error), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
        return [float(100 * (low - 1)), float(100 * (high - 1))]
