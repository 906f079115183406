"""Student's t and chi-square, by numbers: what the intervals ask of a statistics library, without its 100 MB.

With s = sqrt(V / n), V chi-square with n degrees of freedom, t = (Z + shift) / s for a standard normal Z. Its chance
above c is the mean over s of the normal chance above c s - shift (Johnson, Kotz and Balakrishnan, Continuous
Univariate Distributions 2, 1995, chapter 31). That mean is one Gauss-Legendre sum; the quantiles invert it.
"""

import math
from functools import cache
from statistics import NormalDist

import numpy as np

NORMAL = NormalDist()
_NODES = 240
_REACH = 12.0  # standard deviations of s on each side of its middle; what lies outside weighs below 1e-15
_HALVINGS = 200


@cache
def t_quantile(chance: float, freedom: int) -> float:
    """The value that Student's t with `freedom` degrees of freedom stays below with probability `chance`, over 0.5."""
    top = 2.0
    while noncentral_t_above(top, freedom, 0.0) > 1 - chance:
        top *= 2
    return _root(lambda t: (1 - chance) - noncentral_t_above(t, freedom, 0.0), 0.0, top)


@cache
def chi_square_quantile(chance: float, freedom: int) -> float:
    """The value that chi-square with `freedom` degrees of freedom stays below with probability `chance`."""
    low, high = _ends_of_s(freedom)
    return freedom * _root(lambda s: _s_below(s, freedom) - chance, low, high) ** 2


def noncentral_t_above(value: float, freedom: int, shift: float) -> float:
    """Chance that a noncentral t with `freedom` degrees of freedom and noncentrality `shift` exceeds `value`."""
    s, weight = _weights_of_s(freedom)
    return float(weight @ _normal_above(value * s - shift))


def normal_above(value: float) -> float:
    """Chance that a standard normal exceeds `value`; right far out too."""
    return math.erfc(value / math.sqrt(2)) / 2


_normal_above = np.vectorize(normal_above, otypes=[float])


def _s_below(value: float, freedom: int) -> float:
    s, weight = _nodes(_ends_of_s(freedom)[0], value)
    return float(weight @ _density_of_s(s, freedom))


@cache
def _weights_of_s(freedom: int) -> tuple[np.ndarray, np.ndarray]:
    s, weight = _nodes(*_ends_of_s(freedom))
    return s, weight * _density_of_s(s, freedom)


def _ends_of_s(freedom: int) -> tuple[float, float]:
    reach = _REACH / math.sqrt(2 * freedom)
    return max(0.0, 1 - reach), 1 + reach


def _density_of_s(s: np.ndarray, freedom: int) -> np.ndarray:
    half = freedom / 2
    log_density = math.log(2) + half * math.log(half) - math.lgamma(half) - half * s**2
    return (
        np.exp(log_density) * s ** (freedom - 1)
        if freedom < 50
        else np.exp(log_density + (freedom - 1) * np.log(s))
    )


def _nodes(low: float, high: float) -> tuple[np.ndarray, np.ndarray]:
    """Points between `low` and `high` and their Gauss-Legendre weights."""
    points, weights = _unit_nodes()
    return low + (high - low) * (points + 1) / 2, weights * (high - low) / 2


@cache
def _unit_nodes() -> tuple[np.ndarray, np.ndarray]:
    return np.polynomial.legendre.leggauss(_NODES)


def _root(rising, low: float, high: float) -> float:
    """Where the rising function of one number crosses 0 between `low` and `high`, to the last bits."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if rising(middle) < 0 else (low, middle)
    return (low + high) / 2
