"""Intervals and verdicts from paired runs, and how many pairs it takes.

All statistics are of log ratios ln(candidate / baseline), one per independent pair: swapping the arms only turns the
sign, and the estimate is the ratio of the two geometric means. Percentages are made at the very end.

Below BOOTSTRAP_FROM pairs the interval is Student's paired t. From there on it is a bootstrap of the t statistic (Efron and
Tibshirani, An Introduction to the Bootstrap, 1993, section 12.5): the percentile bootstrap of a mean is too narrow by a factor
sqrt((n-1)/n) and by the missing t quantile; at 20 pairs it still calls 7 % of equal arms different.
"""

import bisect
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from latent_moe.lab.results.distributions import chi_square_quantile, noncentral_t_above, t_quantile

CONFIDENCE = 0.95
BOOTSTRAP_FROM = 20
SIGN_FLIP_BELOW = 8
_RESAMPLES = 9_999
_PAIRS_CEILING = 2_000
# Log ratios of measured rates differ by more than the rounding of a double; closer ones are copies of one run.
_NO_SPREAD = 1e-12
# Stopping where the first pairs happened to agree keeps the sessions whose spread is underestimated: with three first pairs
# and no floor 8 % of equal arms come out different, with a floor of 8 pairs up to 6.2 %, of 10 at most 5.8 % (40,000
# simulated sessions for each spread between 1 and 4 %).
_PAIRS_FLOOR = 10

PAIRED_T = "paired t"
BOOTSTRAP = "bootstrap t"


@dataclass(frozen=True)
class Interval:
    """An estimated change in percent with its 95 % interval; the ends are None with a single pair.

    `method` says how the ends were made (PAIRED_T or BOOTSTRAP), None where there are none.
    """

    delta_pct: float
    low_pct: float | None
    high_pct: float | None
    pairs: int
    method: str | None

    @property
    def ends(self) -> list[float] | None:
        """[low, high] in percent, None with a single pair."""
        return None if self.low_pct is None or self.high_pct is None else [self.low_pct, self.high_pct]


def paired_interval(log_ratios: Sequence[float]) -> Interval:
    """The change and its 95 % interval from one log ratio per pair. Raises ValueError without a pair."""
    ratios = np.asarray(log_ratios, dtype=float)
    if ratios.size == 0:
        raise ValueError("no pair")
    delta = _percent(ratios.mean())
    if ratios.size == 1:
        return Interval(delta, None, None, 1, None)
    method = PAIRED_T if ratios.size < BOOTSTRAP_FROM else BOOTSTRAP
    low, high = _t_ends(ratios) if method == PAIRED_T else _bootstrap_ends(ratios)
    return Interval(delta, _percent(low), _percent(high), int(ratios.size), method)


def _percent(log_ratio: float) -> float:
    with np.errstate(over="ignore"):  # an interval so wide that its end has no number: infinite, in JSON null
        return float(100 * np.expm1(log_ratio))


def _t_ends(ratios: np.ndarray) -> tuple[float, float]:
    half = _t_quantile(ratios.size - 1) * _standard_error(ratios)
    return ratios.mean() - half, ratios.mean() + half


def _t_quantile(freedom: int) -> float:
    """Student's two-sided quantile for CONFIDENCE."""
    return t_quantile((1 + CONFIDENCE) / 2, freedom)


def _standard_error(ratios: np.ndarray) -> np.ndarray:
    """Standard error of the mean along the last axis."""
    return ratios.std(axis=-1, ddof=1) / math.sqrt(ratios.shape[-1])


def _bootstrap_ends(ratios: np.ndarray) -> tuple[float, float]:
    """Ends from the resampled t statistic; a fixed seed, so that a table read twice is the same table."""
    mean, error = ratios.mean(), _standard_error(ratios)
    drawn = np.random.default_rng(0).choice(ratios, size=(_RESAMPLES, ratios.size))
    errors = _standard_error(drawn)
    pivots = (drawn.mean(axis=1) - mean)[errors > 0] / errors[errors > 0]
    if pivots.size == 0:  # every pair says exactly the same
        return mean, mean
    low, high = np.quantile(pivots, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return mean - high * error, mean - low * error


def verdict(interval: Interval, sign: int) -> str:
    """improved, regressed or inconclusive; `sign` is +1 where more is better. One pair is always inconclusive."""
    if interval.low_pct is None or interval.high_pct is None or interval.low_pct <= 0 <= interval.high_pct:
        return "inconclusive"
    return "improved" if sign * interval.delta_pct > 0 else "regressed"


def equivalent(log_ratios: Sequence[float], margin_pct: float) -> bool | None:
    """Whether the change is shown to lie within `margin_pct` either way at 5 %; None with fewer than two pairs.

    Two one-sided t tests (Schuirmann, 1987), on log ratios between ln(1 - margin) and ln(1 + margin). False says that it
    is not shown, not that the arms differ.
    """
    ratios = np.asarray(log_ratios, dtype=float)
    if ratios.size < 2:
        return None
    half = t_quantile(CONFIDENCE, ratios.size - 1) * float(_standard_error(ratios))
    margin = margin_pct / 100
    return bool(math.log1p(-margin) < ratios.mean() - half and ratios.mean() + half < math.log1p(margin))


def sign_flip_p(log_ratios: Sequence[float]) -> float | None:
    """Two-sided p of no change by flipping the signs of all pairs in every way; it takes no shape of the noise for granted.

    None with one pair, and from SIGN_FLIP_BELOW pairs on, where the t interval needs no second opinion.
    """
    ratios = np.asarray(log_ratios, dtype=float)
    if not 2 <= ratios.size < SIGN_FLIP_BELOW:
        return None
    signs = np.array(list(itertools.product((-1.0, 1.0), repeat=ratios.size)))
    sums = np.abs(signs @ ratios)
    return float(np.mean(sums >= abs(ratios.sum()) - _NO_SPREAD))


@dataclass(frozen=True)
class Recommendation:
    """How many pairs find `effect_pct` with probability `power`; `pairs` None: too few pairs to say, or hopeless.

    `sd_pct` is the spread of the pairs seen, `planned_sd_pct` the larger one that was planned with.
    """

    pairs: int | None
    sd_pct: float | None
    planned_sd_pct: float | None
    effect_pct: float
    power: float
    note: str


def recommend_pairs(
    log_ratios: Sequence[float], effect_pct: float = 3.0, power: float = 0.8
) -> Recommendation:
    """Pairs needed in all (the ones seen included) to tell an effect of `effect_pct` percent from none.

    The spread of a few pairs is itself uncertain, so the plan takes its upper 80 % confidence bound (chi-square), then
    the smallest n whose two-sided t test has the power asked for (noncentral t), and never fewer than _PAIRS_FLOOR.
    Raises ValueError for an effect or a power that cannot be planned for.
    """
    if effect_pct == 0 or effect_pct <= -100 or not 0.05 < power < 1:
        raise ValueError("an effect other than 0 (above -100 %) and a power between 0.05 and 1 are needed")
    ratios = np.asarray(log_ratios, dtype=float)
    if ratios.size < 2:
        return no_recommendation("one pair says nothing about the spread: run three", effect_pct, power)
    spread = float(ratios.std(ddof=1))
    if spread < _NO_SPREAD:
        text = f"{ratios.size} pairs say exactly the same: no clock does that, so their spread is not known"
        return no_recommendation(text, effect_pct, power)
    planned = spread * math.sqrt((ratios.size - 1) / chi_square_quantile(0.2, int(ratios.size - 1)))
    pairs = _smallest(math.log1p(effect_pct / 100), planned, power)
    note = _note(pairs, int(ratios.size), spread, effect_pct, power)
    return Recommendation(pairs, 100 * spread, 100 * planned, effect_pct, power, note)


def no_recommendation(note: str, effect_pct: float = 3.0, power: float = 0.8) -> Recommendation:
    """None can be given; `note` says why."""
    return Recommendation(None, None, None, effect_pct, power, note)


def _note(pairs: int | None, seen: int, spread: float, effect_pct: float, power: float) -> str:
    """The recommendation in words."""
    basis = f"{seen} pairs spread by {100 * spread:.2g} %" + (" (two say little)" if seen == 2 else "")
    if pairs is None:
        return f"{basis}: more than {_PAIRS_CEILING} pairs, too noisy for {effect_pct:g} %"
    guess = f"; a guess until {_PAIRS_FLOOR} are seen" if seen < _PAIRS_FLOOR else ""
    return f"{basis}: {pairs} pairs in all find {effect_pct:g} % with probability {power:g}{guess}"


def _smallest(effect: float, spread: float, power: float) -> int | None:
    counts = range(_PAIRS_FLOOR, _PAIRS_CEILING + 1)
    # More pairs never find less.
    place = bisect.bisect_left(counts, power, key=lambda pairs: t_power(effect, spread, pairs))
    return counts[place] if place < len(counts) else None


def t_power(effect: float, spread: float, pairs: int) -> float:
    """Chance that a two-sided paired t test at 5 % finds `effect` (log ratio) in `pairs` pairs of that spread."""
    if spread == 0:
        return 1.0
    critical = _t_quantile(pairs - 1)
    shift = abs(effect) / spread * math.sqrt(pairs)
    # The other tail by symmetry.
    return noncentral_t_above(critical, pairs - 1, shift) + noncentral_t_above(critical, pairs - 1, -shift)
