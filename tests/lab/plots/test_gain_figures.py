"""What sharding is worth: modelled lines, a recording's, and traffic patterns inside and outside the closed form."""

import csv

import pytest

from latent_moe.lab.cost import answer, hardware, tail
from latent_moe.lab.plots import model_plots
from latent_moe.lab.recordings import profile_path


def test_modelled_lines_are_the_tails_own():
    figure = model_plots.sharding_gain({"mi355x": ("mi355x", 8, None), "slow": ("mi355x", 8, 10.0)})
    machine = hardware.get("mi355x")
    fast, slow = figure.data
    before, after = (
        tail.tail_cost(name, 64, 8, machine).total_us for name in ("replicated", "column_parallel")
    )
    assert fast.y[fast.x.index(64)] == pytest.approx(100 * (1 - after / before))
    assert all(low < high for low, high in zip(slow.y[4:], fast.y[4:], strict=True))
    assert "modelled" in figure.layout.title.text


def test_a_recording_that_loses_is_drawn_below_zero():
    folder = profile_path("h200x2_tails")
    figure = model_plots.measured_gain({"first": folder / "tails.csv", "second": folder / "series2.csv"})
    first, second = figure.data
    assert (first.name, second.name) == ("first", "second")
    with open(folder / "series2.csv", encoding="utf-8") as file:
        rows = {
            (row["tail"], row["mode"], row["tokens"]): float(row["median_us"]) for row in csv.DictReader(file)
        }
    ours = 100 * (1 - rows["column_parallel", "graph", "8"] / rows["replicated", "graph", "8"])
    assert second.y[second.x.index(8)] == pytest.approx(ours)
    assert ours < 0
    assert "measured" in figure.layout.title.text


def test_given_steps_beat_assumed_ones():
    machine = hardware.get("mi355x")
    given = model_plots.traffic_gain(8, 8, machine, step_ms=709, decode_ms=29)
    assumed = model_plots.traffic_gain(8, 8, machine)
    assert "given steps (709 and 29 ms)" in given.layout.title.text
    assert "assumed" in assumed.layout.title.text
    assert given.data[0].y[0] == pytest.approx(3.8, abs=0.1)


def test_no_bar_where_there_is_no_closed_form():
    figure = model_plots.traffic_gain(128, 8, hardware.get("mi355x"), isl=65536, osl=16)
    assert not figure.data
    assert "no closed form" in figure.layout.title.text


def test_the_whiskers_are_the_bands():
    path = str(profile_path("mi355x_pr51253"))
    anchored = model_plots.predicted_against_published(answer.predict({"table": path, "anchor": 8}))
    modelled = answer.predict({"table": path})
    bar = model_plots.predicted_against_published(modelled).data[0]
    (low, high), middle = modelled["rows"][0]["band90_pct"]["total_tok_per_s"], bar.y[0]
    assert middle - bar.error_y.arrayminus[0] == pytest.approx(low)
    assert middle + bar.error_y.array[0] == pytest.approx(high)
    assert "the the" not in anchored.layout.title.text
