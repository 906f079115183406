"""The distributions by numbers against scipy's."""

import math

import pytest
from scipy import stats

from latent_moe.lab.results import distributions

FREEDOMS = (1, 2, 3, 5, 9, 19, 49, 50, 199, 999, 5000)


@pytest.mark.parametrize("freedom", FREEDOMS)
def test_quantiles(freedom):
    for chance in (0.8, 0.975, 0.995):
        assert distributions.t_quantile(chance, freedom) == pytest.approx(
            stats.t.ppf(chance, freedom), rel=1e-10
        )
    for chance in (0.05, 0.2, 0.9):
        expected = stats.chi2.ppf(chance, freedom)
        assert distributions.chi_square_quantile(chance, freedom) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("freedom", FREEDOMS)
@pytest.mark.parametrize("shift", [-3.0, -0.4, 0.0, 0.7, 2.5, 12.0])
def test_noncentral_t(freedom, shift):
    for value in (0.5, 2.0, 4.3):
        expected = stats.nct.sf(value, freedom, shift) if shift else stats.t.sf(value, freedom)
        computed = distributions.noncentral_t_above(value, freedom, shift)
        # scipy's own series is good to about 1e-10 far out.
        assert computed == pytest.approx(expected, rel=1e-7, abs=1e-11)


def test_the_other_tail_is_a_number_however_small():
    assert distributions.noncentral_t_above(2.0, 9, -60.0) >= 0.0
    assert distributions.normal_above(30.0) == pytest.approx(stats.norm.sf(30.0), rel=1e-12)
    assert math.isclose(distributions.normal_above(0.0), 0.5)
