"""A recording in time: windows cut kernels at their ends, and tell the sum from the union."""

import pytest

from latent_moe.lab.plots import trace_plots
from latent_moe.lab.recordings import profile_path
from latent_moe.lab.traces import read_trace
from latent_moe.lab.traces.table import kernels_from, to_frame


@pytest.fixture
def two_queues():
    """Two devices; on the first a collective of 100 us runs under a GEMM for 50 us, in ns."""
    return to_frame(
        kernels_from(
            3,
            start_ns=[1_000_000, 1_050_000, 1_000_000],
            end_ns=[1_100_000, 1_150_000, 1_040_000],
            dur_ns=[100_000, 100_000, 40_000],
            kind=["collective", "gemm", "gemm"],
            name=["ncclDevKernel", "Cijk_tile", "Cijk_tile"],
            process=["1", "1", "1"],
            agent=["0", "0", "1"],
            queue=["1", "2", "1"],
        )
    )


@pytest.mark.parametrize(
    ("start", "length", "name", "title"),
    [
        (0, 200, "", "3 kernels: 240.0 us added up, 190.0 us busy"),
        (0, 200, "NCCL", "1 kernels: 100.0 us added up, 100.0 us busy"),
        (20, 60, "", "3 kernels: 110.0 us added up, 80.0 us busy"),
        (100, 10, "", "1 kernels: 10.0 us added up, 10.0 us busy"),
        (400, 10, "", "0 kernels: 0.0 us added up, 0.0 us busy"),
    ],
)
def test_a_window_cuts_and_tells_sum_from_union(two_queues, start, length, name, title):
    figure = trace_plots.window(two_queues, "invented", "synthetic", start, length, name)
    assert figure.layout.title.text.startswith(title)
    drawn = [(base, base + x) for bar in figure.data for base, x in zip(bar.base, bar.x, strict=True)]
    assert all(start <= begin < end <= start + length for begin, end in drawn)


def test_a_step_is_found_by_its_region():
    trace = read_trace(profile_path("synthetic_k3_tail") / "replicated" / "results.db")
    step = trace_plots.step_of(trace)
    figure = trace_plots.timeline(trace, "invented", "synthetic", region=step)
    assert "step=1" in step
    assert sum(len(bar.x) for bar in figure.data) == int((trace.table["region"] == step).sum()) == 40


def test_a_recording_without_regions_has_no_step():
    bare = read_trace(profile_path("synthetic_k3_tail") / "replicated" / "kernel_trace.csv")
    assert trace_plots.step_of(bare) is None
