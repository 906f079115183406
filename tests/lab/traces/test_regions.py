"""Ranges joined to kernels, and GEMM shapes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latent_moe.lab.traces.regions import from_dims, from_region, innermost, join_regions
from latent_moe.lab.traces.table import Ranges, kernels_from, ranges_from

GEMM, ADD = "Cijk_Alik_Bljk_BBS_BH_MT64x64x64", "void at::native::vectorized_elementwise_kernel<4>"


def joined(kernels, ranges) -> list[str | None]:
    return join_regions(kernels, ranges)["region"].objects().tolist()


def host(**columns):
    n = len(columns["name"])
    return ranges_from(n, process=["p"] * n, domain=["host"] * n, **columns)


def brute_force(starts, ends, moment) -> int:
    """Of the spans around the moment, the one that started last; of equal starts the shorter."""
    around = [row for row in range(len(starts)) if starts[row] <= moment <= ends[row]]
    return max(around, key=lambda row: (starts[row], -ends[row], row), default=-1)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 20)), min_size=0, max_size=12),
    st.lists(st.integers(-2, 65), min_size=1, max_size=12),
)
def test_innermost_agrees_with_looking_at_every_span(spans, moments):
    starts = np.array([a for a, _ in spans], dtype=np.int64)
    ends = np.array([a + length for a, length in spans], dtype=np.int64)
    found = innermost(starts, ends, np.array(moments, dtype=np.int64))
    for moment, row in zip(moments, found.tolist(), strict=True):
        best = brute_force(starts, ends, moment)
        assert (row == -1) == (best == -1)
        assert row == -1 or (starts[row], ends[row]) == (starts[best], ends[best])


def test_a_prefilled_region_stays():
    kernels = kernels_from(2, name=[GEMM, GEMM], region=["own", None], correlation=[7, 7], process=["p", "p"])
    ranges = host(name=["outer"], start_ns=[0], end_ns=[100], correlation=[7])
    assert joined(kernels, ranges) == ["own", "outer"]


def test_the_parent_correlation_id_wins_over_time():
    kernels = kernels_from(1, name=[GEMM], process=["p"], parent=[5], start_ns=[50], end_ns=[60])
    ranges = host(name=["by id", "by time"], start_ns=[900, 0], end_ns=[950, 100], correlation=[5, 6])
    assert joined(kernels, ranges) == ["by id"]


def test_correlation_ids_of_another_process_do_not_match():
    kernels = kernels_from(1, name=[GEMM], process=["q"], parent=[5])
    ranges = host(name=["by id"], start_ns=[900], end_ns=[950], correlation=[5])
    assert joined(kernels, ranges) == [None]


def test_the_innermost_range_at_the_launch_on_the_launching_thread():
    """The kernels run long after their ranges have ended: only the launch time tells."""
    kernels = kernels_from(
        3,
        **{"name": [GEMM, ADD, ADD], "process": ["p"] * 3, "thread": [1, 1, 2], "launch_ns": [15, 35, 15]},
        **{"start_ns": [1000, 1100, 1200], "end_ns": [1010, 1110, 1210], "correlation": [1, 2, 3]},
    )
    ranges = host(
        **{"name": ["outer", "inner", "late", "other"], "thread": [1, 1, 1, 2]},
        **{"start_ns": [0, 10, 990, 5], "end_ns": [40, 20, 2000, 50]},
    )
    assert joined(kernels, ranges) == ["inner", "outer", "other"]


def test_device_ranges_count_on_their_own_stream_only():
    kernels = kernels_from(
        2,
        name=[ADD, ADD],
        process=["p"] * 2,
        agent=["g"] * 2,
        stream=["7", "8"],
        start_ns=[5, 5],
        end_ns=[6, 6],
    )
    ranges = ranges_from(
        1, **{"name": ["annotation"], "process": ["p"], "domain": ["device"], "agent": ["g"], "stream": ["7"]},
        start_ns=[0], end_ns=[10],
    )  # fmt: skip
    assert joined(kernels, ranges) == ["annotation", None]


def test_without_ids_and_launches_device_time_decides():
    kernels = kernels_from(3, name=[ADD] * 3, process=["p", "p", "q"], start_ns=[5, 50, 5], end_ns=[6, 60, 6])
    ranges = host(name=["a", "b"], start_ns=[0, 40], end_ns=[10, 70])
    assert joined(kernels, ranges) == ["a", "b", None]


def test_a_kernel_without_a_time_gets_no_region_by_time():
    kernels = kernels_from(1, name=[ADD], process=["p"])
    assert joined(kernels, host(name=["a"], start_ns=[-5], end_ns=[10])) == [None]


def test_steps_and_communication_annotations_are_no_regions():
    kernels = kernels_from(1, name=[ADD], process=["p"], start_ns=[5], end_ns=[6])
    ranges = host(name=["tail", "ProfilerStep#3", "nccl:all_reduce"], start_ns=[0, 3, 4], end_ns=[20, 9, 8])
    assert joined(kernels, ranges) == ["tail"]


def test_nothing_to_join():
    out = join_regions(kernels_from(2, name=[GEMM, ADD]), Ranges(0))
    assert out["region"].objects().tolist() == [None, None]
    assert out["M"].tolist() == [-1, -1]


@pytest.mark.parametrize(
    ("op", "dims", "shape"),
    [
        ("aten::mm", "[[16,559],[559,1024]]", (16, 1024, 559)),
        ("aten::addmm", "[[1024],[16,559],[559,1024],[],[]]", (16, 1024, 559)),
        ("aten::addmm_", "[[16,512],[16,32],[32,512],[],[]]", (16, 512, 32)),
        ("aten::bmm", "[[4,16,32],[4,32,8]]", (16, 8, 32)),
        ("aten::linear", "[[2,8,32],[64,32],[]]", (16, 64, 32)),
        ("aten::mv", "[[16,32],[32]]", (16, 1, 32)),
        ("vllm::rocm_unquantized_gemm", "[[16,3584],[896,3584],[]]", (16, 896, 3584)),
        ("aten::add", "[[16,32],[32,8]]", (-1, -1, -1)),
        ("aten::mm", "[[16,559],[560,1024]]", (-1, -1, -1)),
        ("aten::mm", "[]", (-1, -1, -1)),
        ("aten::mm", "not json", (-1, -1, -1)),
        ("aten::mm", '[[16,"x"],["x",3]]', (-1, -1, -1)),
    ],
)
def test_shapes_from_input_dimensions(op, dims, shape):
    assert from_dims(op, dims) == shape


def test_shapes_from_region_names():
    assert from_region("tail=column_parallel T=16 step=3 M=16 N=896 K=3584") == (16, 896, 3584)
    assert from_region("gemm K=1 N=2 M=3") == (3, 2, 1)
    assert from_region("tail=pipelined T=16 M=4") == (-1, -1, -1)
    assert from_region("DIM=1 N=2 K=3") == (-1, -1, -1)


def test_only_gemms_get_a_shape_and_dimensions_win_over_names():
    kernels = kernels_from(
        3,
        **{"name": [GEMM, ADD, GEMM], "process": ["p"] * 3, "start_ns": [1, 2, 3], "end_ns": [2, 3, 4]},
        **{"op": ["aten::mm", "aten::mm", None], "dims": ["[[2,3],[3,4]]", "[[2,3],[3,4]]", None]},
    )
    out = join_regions(kernels, host(name=["x M=7 N=8 K=9"], start_ns=[0], end_ns=[10]))
    assert out["M"].tolist() == [2, -1, 7]
    assert out["N"].tolist() == [4, -1, 8]
    assert out["K"].tolist() == [3, -1, 9]
