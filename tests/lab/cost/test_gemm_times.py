"""GEMM times: exact where published, between points on a line, elsewhere modelled and labelled so."""

import pytest

from latent_moe.errors import InputError
from latent_moe.lab.cost import gemm
from latent_moe.lab.cost.tail_timings import leave_one_out_error, loglog


def test_a_published_shape_comes_back_as_published(mi355x):
    term = gemm.gemm(64, 7168, 3584, mi355x)
    assert (term.us, term.kind, term.fit_error) == (15.3475, "measured", 0.0)


def test_between_two_m_is_interpolated_with_an_error(mi355x):
    term = gemm.gemm(96, 7168, 3584, mi355x)
    assert term.kind == "interpolated"
    assert 15.3475 < term.us < 18.9173
    assert 0 < term.fit_error < 0.1


def test_the_shard_has_no_rows_and_says_modelled(mi355x):
    term = gemm.gemm(16, 896, 3584, mi355x)
    assert term.kind == "modelled"
    # Its nearest published neighbour is 1024 x 4096 (6.23 us): a little smaller, a little faster.
    assert 5 < term.us < 6.2326
    assert term.fit_error == pytest.approx(gemm.neighbour_error(mi355x, "mi355x_aiter_gemm"))


def test_modelled_shapes_are_held_to_published_ones(mi355x):
    # Every shape predicted from the other shapes alone.
    assert gemm.neighbour_error(mi355x, "mi355x_aiter_gemm") < 0.10


def test_above_the_last_m_the_rate_stays(mi355x):
    last, beyond = (gemm.gemm(m, 7168, 3584, mi355x).us for m in (10240, 20480))
    assert beyond == pytest.approx(2 * last, rel=0.02)


def test_a_half_filled_tile_takes_a_whole_one_s_time(mi355x):
    plain = mi355x.replace(gemm_times=None)
    assert gemm.roofline_us(16384, 896, 3584, plain) == gemm.roofline_us(16384, 1024, 3584, plain)
    assert gemm.roofline_us(16384, 1025, 3584, plain) > gemm.roofline_us(16384, 1024, 3584, plain)


def test_the_roofline_is_its_two_limits(mi355x):
    plain = mi355x.replace(gemm_times=None)
    tiny, weights = gemm.roofline_us(1, 7168, 3584, plain), 2 * (7168 * 3584 + 7168 + 3584)
    assert tiny == pytest.approx(3.53 + weights / (0.813 * 8e6))
    large = gemm.roofline_us(16384, 7168, 3584, plain)
    assert large == pytest.approx(3.53 + 2 * 16384 * 7168 * 3584 / (0.533 * 2516e6))


def test_sizes_below_one_are_refused(mi355x):
    with pytest.raises(InputError, match="at least 1"):
        gemm.gemm(0, 7168, 3584, mi355x)


def test_loglog_is_a_power_law_between_points_and_flat_outside():
    points = {1: 1.0, 100: 10.0}
    assert loglog(points, 10) == pytest.approx(10**0.5)
    assert (loglog(points, 0.5), loglog(points, 1000)) == (1.0, 10.0)
    assert leave_one_out_error({1: 1.0, 10: 2.0, 100: 10.0}) == pytest.approx(10**0.5 / 2 - 1)
    assert leave_one_out_error(points) is None


@pytest.mark.parametrize("row", ["a,7168,3584,1", "1,7168,3584,-1", "0,7168,3584,1"])
def test_an_unusable_row_of_times_is_refused(tmp_path, row):
    file = tmp_path / "t.csv"
    file.write_text(f"M,N,K,us\n{row}\n")
    with pytest.raises(InputError, match="line 2"):
        gemm._read(file, {})


def test_the_error_expected_of_a_roofline_is_what_the_published_rows_show(mi355x):
    from statistics import median

    from latent_moe.lab.cost.hardware import ROOFLINE_ERROR

    times = gemm.published("mi355x_aiter_gemm").times
    errors = [
        abs(gemm.roofline_us(m, *shape, mi355x) / us - 1)
        for shape, rows in times.items()
        for m, us in rows.items()
    ]
    assert median(errors) == pytest.approx(ROOFLINE_ERROR, abs=0.005)
