"""Sums, unions, medians, clipping, waits: on tables small enough to count by hand."""

import numpy as np
import pytest

from latent_moe.lab.traces import metrics, overlap_clip, steps
from latent_moe.lab.traces.collectives import collectives
from latent_moe.lab.traces.table import Ranges, Trace, constant, encode, kernels_from, ranges_from


def table(spans, **columns):
    start, end = zip(*spans, strict=True)
    n = len(spans)
    columns.setdefault("process", ["1"] * n)
    columns.setdefault("agent", ["Agent 1"] * n)
    columns.setdefault("queue", ["1"] * n)
    columns.setdefault("name", ["k"] * n)
    return kernels_from(n, start_ns=start, end_ns=end, **columns)


def test_union_against_marking_every_nanosecond():
    rng = np.random.default_rng(3)
    for _ in range(50):
        start = rng.integers(0, 60, 12)
        end = start + rng.integers(0, 15, 12)
        marked = np.zeros(100, dtype=bool)
        for a, b in zip(start, end, strict=True):
            marked[a:b] = True
        assert metrics.union_ns(start, end) == marked.sum()


def test_sum_and_union_differ_where_kernels_overlap():
    kernels = table([(10, 20), (15, 30), (40, 50)], queue=["1", "2", "1"])
    assert (metrics.total_ns(kernels), metrics.busy_ns(kernels), metrics.span_ns(kernels)) == (35, 30, 40)
    assert [busy for *_, busy in metrics.busy_by(kernels, metrics.QUEUE)] == [20, 15]


def test_devices_are_busy_each_for_itself():
    kernels = table([(10, 20), (10, 20)], agent=["Agent 1", "Agent 2"])
    assert metrics.busy_ns(kernels) == 20


def test_mean_and_median_per_group():
    kernels = table([(0, 10), (0, 20), (0, 60), (0, 1)], kind=["gemm", "gemm", "gemm", "norm"])
    rows = {row.key: row for row in metrics.group(kernels, "kind")}
    assert (rows["gemm"].calls, rows["gemm"].total_ns, rows["gemm"].mean_ns, rows["gemm"].median_ns) == (
        3,
        90,
        30,
        20,
    )
    assert metrics.share(kernels, "kind", "norm") == pytest.approx(1 / 91)


def test_untimed_kernels_are_in_no_sum_and_have_a_row():
    kernels = table([(1, 2), (3, 4)], name=["a", "b"])
    kernels["timed"] = np.array([True, False])
    kernels["dur_ns"] = np.array([1, 0])
    rows = {row.key: row for row in metrics.group(kernels, "name")}
    assert (rows["b"].calls, rows["b"].untimed_calls, rows["b"].mean_ns) == (0, 1, None)
    assert metrics.calls(kernels) == 1


def test_one_overtaken_successor_is_left_two_are_clipped():
    small = table([(0, 12), (10, 20), (20, 30)])
    assert overlap_clip.clip(small) == (0, 0)
    large = table([(0, 25), (10, 20), (20, 30)])
    assert overlap_clip.clip(large) == (1, 15)
    assert large["dur_ns"].tolist() == [10, 10, 10]
    other_queue = table([(0, 25), (10, 20), (20, 30)], queue=["1", "2", "2"])
    assert overlap_clip.clip(other_queue) == (0, 0)


def test_waiting_for_the_last_rank_is_told_from_transfer():
    spans = [(0, 100), (60, 100), (200, 230), (210, 230)]
    agents = ["Agent 1", "Agent 2", "Agent 1", "Agent 2"]
    found = collectives(table(spans, agent=agents, kind=["collective"] * 4))
    assert (found.total_ns, found.wait_ns, found.transfer_ns) == (190, 70, 120)


def test_no_wait_is_claimed_without_a_common_clock_or_equal_counts():
    apart = table([(0, 10), (500, 510)], agent=["Agent 1", "Agent 2"], kind=["collective"] * 2)
    assert collectives(apart).wait_ns is None
    unequal = table(
        [(0, 10), (0, 10), (20, 30)], agent=["Agent 1", "Agent 2", "Agent 1"], kind=["collective"] * 3
    )
    assert collectives(unequal).wait_ns is None


def test_steps_are_counted_from_ranges():
    kernels = table([(10, 20), (30, 40), (90, 95)])
    names = ["ProfilerStep#1", "ProfilerStep#2", "layer"]
    ranges = ranges_from(
        3,
        process=["1"] * 3,
        name=names,
        start_ns=[5, 25, 0],
        end_ns=[22, 45, 100],
        domain=constant("host", 3),
    )
    found = steps.steps(Trace(kernels, ranges))
    assert (found.count, found.total_ns_per_step, found.busy_ns_per_step) == (2, 10, 10)
    assert steps.steps(Trace(kernels, Ranges(0))) is None


def test_the_data_frame_has_the_designs_columns_and_missing_cells():
    frame = Trace(table([(1, 2)], rank=[-1]), Ranges(0)).table
    expected = "process rank agent queue stream name kind library start_ns end_ns dur_ns region M N K grid workgroup source"
    assert list(frame.columns) == expected.split()
    assert frame.loc[0, ["rank", "M", "region"]].isna().all()
    assert frame.dur_ns.dtype == "Int64"


def test_dictionaries_merge_when_tables_are_joined():
    one, two = table([(1, 2)], name=["a"]), table([(1, 2), (3, 4)], name=["b", "a"])
    both = type(one).concatenate([one, two])
    assert both["name"].objects().tolist() == ["a", "b", "a"]
    assert both["stream"].objects().tolist() == [None, None, None]


def test_many_texts_still_fit_their_codes():
    texts = [str(i) for i in range(40_000)]
    assert encode(texts).objects().tolist() == texts


def test_gaps_and_what_was_waited_for():
    kernels = table([(10, 20), (15, 30), (50, 60), (90, 95)])
    kernels["launch_ns"] = np.array([5, 6, 40, 20])
    gaps = metrics.largest_gaps(kernels)
    assert [(gap.start_ns, gap.gap_ns, gap.waited_for) for gap in gaps] == [
        (60, 30, "queue"),
        (30, 20, "host"),
    ]
    assert metrics.idle_ns(kernels) == 50


def test_calls_that_carry_a_mean_are_counted():
    kernels = table([(i * 1_000, i * 1_000 + (900 if i == 0 else 10)) for i in range(30)])
    (row,) = metrics.group(kernels, "kind")
    assert (row.carried_by, row.p90_ns, row.median_ns) == (1, 10.0, 10.0)
