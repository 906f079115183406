"""Figures of GEMMs: the roofline's marks and factor, and calls of recordings taken apart by T."""

import numpy as np
import pytest

from latent_moe.errors import InputError
from latent_moe.lab.cost import hardware
from latent_moe.lab.cost.gemm import published, roofline_us
from latent_moe.lab.plots import layer_plots, trace_plots
from latent_moe.lab.recordings import profile_path
from latent_moe.lab.traces import read_trace
from latent_moe.lab.traces.table import Trace


def _named(figure, name):
    return [trace for trace in figure.data if trace.name == name]


@pytest.mark.parametrize(("tokens", "tp"), [(1, 8), (64, 2), (16384, 4)])
def test_the_marks_stand_where_the_roofline_says(tokens, tp):
    figure = layer_plots.roofline(tokens, tp, "mi300x")
    machine = hardware.get("mi300x")
    whole, sharded = (roofline_us(tokens, n, 3584, machine) for n in (7168, 7168 // tp))
    time, rate = _named(figure, f"column_parallel at T = {tokens}")
    assert time.y == (pytest.approx(sharded),)
    assert rate.y[0] == pytest.approx(2 * tokens * 3584 * (7168 // tp) / sharded / 1e6)
    assert f"{whole / sharded:.1f} times faster" in figure.layout.title.text
    assert 1 < whole / sharded < tp


def test_no_mark_reaches_over_the_roof():
    figure = layer_plots.roofline(4096, 8, "h200")
    (roof,) = _named(figure, "roofline")
    for name in ("replicated, N = 7168", "column_parallel, N = 896"):
        line = _named(figure, name)[1]
        assert (np.array(line.y) < np.interp(line.x, roof.x, roof.y)).all()


def test_published_dots_only_where_times_are_published():
    (dots,) = _named(layer_plots.roofline(64, 8, "mi355x"), "published, N = 7168")
    assert dict(zip(dots.x, dots.y, strict=True)) == published("mi355x_aiter_gemm").times[7168, 3584]
    assert not _named(layer_plots.roofline(64, 8, "h200"), "published, N = 7168")


def test_unknown_hardware_is_named():
    with pytest.raises(InputError, match="mi999"):
        layer_plots.roofline(64, 8, "mi999")


def test_gemm_calls_are_taken_apart_by_tokens():
    folder = profile_path("synthetic_k3_tail")
    arms = {tail: read_trace(folder / tail) for tail in ("replicated", "column_parallel")}
    first, second = trace_plots.gemm_calls(arms, "invented", "synthetic").data
    assert (first.x, first.y, first.text) == (("16",), (11.69,), ("32 calls",))
    assert second.y == (4.3,)


def test_an_arm_without_gemms_has_no_bar_rather_than_zero():
    folder = profile_path("synthetic_k3_tail")
    whole = read_trace(folder / "replicated")
    kinds = whole.kernels["kind"]
    bare = Trace(whole.kernels.take(kinds.codes != kinds.values.index("gemm")), whole.ranges)
    figure = trace_plots.gemm_calls({"replicated": whole, "bare": bare}, "invented", "synthetic")
    assert figure.data[1].y == (None,)
