"""What every figure gets: labels on bars that can be read, and words that stand for the picture."""

import json

import numpy as np
import plotly.graph_objects as go
import pytest

from latent_moe.lab.plots import theme


def _contrast(one, other):
    def luminance(text):
        parts = [int(text[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        red, green, blue = (v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("ground", theme.COLOURS)
def test_labels_on_every_colour_of_the_palette_are_aa(ground):
    assert _contrast(theme.ink_on(ground), ground) >= 4.5
    assert theme.ink_on(ground) in ("#000000", "#ffffff")


def _finished(*bars):
    return theme.finish(go.Figure(bars), "t", "synthetic", "x", "y, us").data


def test_bars_take_the_readable_ink():
    [orange, blue] = _finished(
        *(go.Bar(y=[1], text=["a"], marker={"color": theme.COLOURS[i]}) for i in (1, 0))
    )
    assert orange.insidetextfont.color == "#000000"
    assert blue.insidetextfont.color == "#ffffff"
    assert orange.textposition is None


def test_labels_beside_hatched_bars_stand_above():
    plain, hatched = go.Bar(y=[1], text=["a"]), go.Bar(y=[2], text=["b"], marker={"pattern": {"shape": "/"}})
    assert [bar.textposition for bar in _finished(plain, hatched)] == ["outside", "outside"]
    silent = go.Bar(y=[2], marker={"pattern": {"shape": "/"}})
    assert [bar.textposition for bar in _finished(plain, silent)] == [None, None]


def test_alt_text_has_the_numbers():
    bars = go.Bar(name="fused", x=["a", "b"], y=[1.5, None])
    lines = go.Scatter(name="overlap", x=list(range(20)), y=np.arange(20) / 2)
    figure = theme.finish(go.Figure([bars, lines]), "Time", "synthetic", "x", "us")
    said = theme.alt_text(json.loads(figure.to_json()))
    assert "fused: a 1.5. overlap: 0 to 9.5" in said


def test_alt_text_names_title_caption_axes_and_traces():
    figure = theme.finish(go.Figure(go.Scatter(y=[1], name="replicated")), "Time", "measured, CPU", "T", "us")
    said = theme.alt_text(figure.to_dict())
    assert said == "Time: measured, CPU. Across: T. Up: us. replicated: 1"
