"""The cost figures show what the tables say, and the kind of their data."""

import pytest

from latent_moe.lab.cost import answer as report
from latent_moe.lab.cost import hardware, predict, savings, tail
from latent_moe.lab.plots import model_plots
from latent_moe.lab.recordings import profile_path


def test_the_stacks_add_up_to_the_tails():
    figure = model_plots.tail_terms(64, 8, "mi355x")
    assert "modelled" in figure.layout.title.text
    machine = hardware.get("mi355x")
    for index, name in enumerate(tail.TAIL_NAMES):
        assert sum(bar.y[index] for bar in figure.data) == pytest.approx(
            tail.tail_cost(name, 64, 8, machine).total_us
        )
    looks = {(bar.marker.color, bar.marker.pattern.shape) for bar in figure.data}
    assert len(looks) == len(figure.data)


def test_a_slower_link_makes_the_all_reduce_longer():
    fast, slow = (
        next(
            bar
            for bar in model_plots.tail_terms(4096, 8, "mi355x", link).data
            if bar.name == "all_reduce(hidden)"
        ).y[0]
        for link in (76.8, 20.0)
    )
    assert slow > fast


def test_the_map_is_coloured_by_the_best_tail():
    (heat,) = model_plots.crossovers("mi355x", tps=(2, 8), largest=4).data
    machine = hardware.get("mi355x")
    assert heat.text[1][3] == tail.best_tail(8, 8, machine).tail
    assert tail.TAIL_NAMES[heat.z[1][3]] == heat.text[1][3]


def test_predicted_bars_stand_beside_published_ones():
    answer = report.predict({"table": str(profile_path("mi355x_pr51253"))})
    predicted, published = model_plots.predicted_against_published(answer, "mean_ttft_ms").data
    assert published.y[0] == pytest.approx(-5.52, abs=0.01)
    assert predicted.y[0] == answer["rows"][0]["delta_pct"]["mean_ttft_ms"]


def test_a_gain_shows_its_uncertainty():
    row = predict.traffic_row(8, 8192, 1024, 709.0, 29.0, 16384)
    found = predict.predict_row(row, 709.0, savings.modelled(hardware.get("mi355x"), 8), predict.Setup())
    (bar,) = model_plots.expected_gain(found, "MI355X").data
    assert bar.error_y.array[0] == pytest.approx(found.uncertainty_pp["total_tok_per_s"])
