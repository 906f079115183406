"""Figures of throughput tables and of the plan for them."""

import pytest

from latent_moe.lab.plots import serving_plots
from latent_moe.lab.recordings import profile_path
from latent_moe.lab.results import read_results, render
from latent_moe.lab.results.comparison import compare
from latent_moe.lab.results.stats import paired_interval, t_power


def _frame(name, **arms):
    return render.frame(compare(read_results([profile_path(name)]), **arms))


def test_the_width_is_that_of_the_tables_own_interval():
    log_ratios = [0.001, 0.012, -0.009, 0.02]
    found = paired_interval(log_ratios)
    spread = 100 * (sum((x - 0.006) ** 2 for x in log_ratios) / 3) ** 0.5
    figure = serving_plots.interval_width(4, spread, 3.0)
    line = next(one for one in figure.data if one.name == "half width")
    assert line.y[line.x.index(4)] == pytest.approx((found.high_pct - found.low_pct) / 2, rel=0.02)


def test_the_chance_grows_with_pairs_and_shrinks_with_spread():
    quiet, loud = (serving_plots.interval_width(10, sd, 3.0).data for sd in (2.0, 6.0))
    chance = [next(one for one in data if one.name == "chance") for data in (quiet, loud)]
    assert (
        chance[0].y[8] > chance[1].y[8] == pytest.approx(100 * t_power(0.02955880, 0.05826891, 10), rel=1e-6)
    )
    assert list(chance[1].y) == sorted(chance[1].y)


def test_intervals_are_drawn_where_there_are_some_and_said_where_not():
    recorded, published = (
        _frame("h200x2_vllm_6layers"),
        _frame("mi355x_pr51253", baseline="main", candidate="PR"),
    )
    with_bars, without = serving_plots.deltas(recorded), serving_plots.deltas(published)
    row = recorded[(recorded["metric"] == "total_tok_per_s") & (recorded["concurrency"] == 8)].iloc[0]
    assert with_bars.data[0].error_y.array[0] == pytest.approx(row["ci95_high_pct"] - row["delta_pct"])
    assert "95 % intervals" in with_bars.layout.title.text
    assert "no interval" in without.layout.title.text


def test_both_arms_are_named_and_their_means_described():
    figure = serving_plots.both_arms(_frame("h200x2_vllm_6layers"), "mean_tpot_ms")
    assert [line.name for line in figure.data] == ["replicated", "column_parallel"]
    assert "geometric means over 4 pairs" in figure.layout.title.text
    assert figure.layout.yaxis.title.text == "Mean TPOT (ms)"
