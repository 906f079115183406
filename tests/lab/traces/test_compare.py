"""Two recordings side by side: what may be said, and what may not."""

import json

import numpy as np
import pytest

from latent_moe.cli import main
from latent_moe.lab.traces.compare import compare
from latent_moe.lab.traces.kernel_names import classify
from latent_moe.lab.traces.read import read
from latent_moe.lab.traces.steps import marked_steps, marks, select
from latent_moe.lab.traces.table import Ranges, Trace, encode, kernels_from

GEMM, OTHER_GEMM = "Cijk_Alik_Bljk_BBS_BH_MT256x256x64", "Cijk_Alik_Bljk_BBS_BH_MT128x128x64"
NORM, REDUCE = "void vllm::rms_norm_kernel<c10::BFloat16>", "ncclDevKernel_Generic_1(int)"
HEADER = "Kind,Agent_Id,Queue_Id,Kernel_Name,Correlation_Id,Start_Timestamp,End_Timestamp\n"


def csv(path, rows):
    """A rocprofv3 kernel trace: rows of (agent, queue, name, start, end)."""
    lines = [
        f'KERNEL_DISPATCH,"Agent {a}",{q},"{n}",{i},{s},{e}\n' for i, (a, q, n, s, e) in enumerate(rows, 1)
    ]
    path.write_text(HEADER + "".join(lines), encoding="utf-8")
    return path


@pytest.fixture
def sharding(tmp_path):
    """Four devices, three steps: 100 us GEMMs; 30 us GEMMs of another tile with a 45 us collective 10 us under them."""
    base = 900_000_000_000
    devices = [(step, agent) for step in range(3) for agent in range(4)]
    before = [
        (a, 1, GEMM, base + s * 120_000 + a * 100, base + s * 120_000 + a * 100 + 100_000) for s, a in devices
    ]
    after = []
    for step, agent in devices:
        start = base + step * 80_000 + agent * 100
        after.append((agent, 1, OTHER_GEMM, start, start + 30_000))
        after.append((agent, 2, REDUCE, start + 20_000, start + 65_000))
    return csv(tmp_path / "replicated.csv", before), csv(tmp_path / "sharded.csv", after)


@pytest.fixture
def lost(tmp_path):
    """The same work twice; of the second, only 12 GEMMs and 14 attentions of 20 each were recorded."""

    def rows(gemms, attentions):
        work = [(GEMM, 50_000, gemms), ("attn_fwd", 30_000, attentions)]
        return [
            (0, 1, n, (i + 1) * 100_000 + d, (i + 1) * 100_000 + 2 * d) for n, d, c in work for i in range(c)
        ]

    return csv(tmp_path / "whole.csv", rows(20, 20)), csv(tmp_path / "lost.csv", rows(12, 14))


def table(rows, **extra) -> Trace:
    """A trace from (device, name, start, duration, region) rows."""
    agents, names, starts, durations, regions = zip(*rows, strict=True)
    starts = np.array(starts, dtype=np.int64)
    kernels = kernels_from(
        len(rows),
        **{"process": ["p"] * len(rows), "agent": [f"GPU {a}" for a in agents], "name": list(names)},
        **{
            "start_ns": starts,
            "end_ns": starts + np.array(durations, dtype=np.int64),
            "region": encode(regions),
        },
    )
    kernels["kind"] = kernels["name"].map(classify(kernels["name"].values).kind)
    return Trace(kernels, Ranges(0), **extra)


def codes(result):
    return {warning.code for warning in result.warnings}


def test_sharding_is_read_right(sharding):
    result = compare(*map(read, sharding))
    assert result.verdict == "faster"
    assert result.per_call["gemm"]["speedup"] == pytest.approx(10 / 3)
    assert result.per_step["sum_speedup"] == pytest.approx(4 / 3)
    assert result.per_step["busy_speedup"] == pytest.approx(100 / 65)
    assert result.per_call["collective"]["baseline_ns"] is None
    assert result.per_call["collective"]["speedup"] is None
    assert (result.baseline.total_ns, result.candidate.total_ns) == (1_200_000, 900_000)
    assert (result.candidate.calls, result.candidate.collectives.overlap_with_gemm_ns) == (
        {"collective": 12, "gemm": 12},
        120_000,
    )
    assert "no_collectives" in codes(result)


def test_the_invented_case_of_sharding(shared):
    cases = shared / "cases"
    files = cases / "17-replicated_kernel_trace.csv", cases / "17-sharded_kernel_trace.csv"
    result = compare(*map(read, files))
    assert result.per_step["busy_speedup"] == pytest.approx(1.538, abs=5e-4)
    assert result.per_step["sum_speedup"] == pytest.approx(1.333, abs=5e-4)
    assert result.per_call["gemm"]["speedup"] == pytest.approx(3.333, abs=5e-4)


def test_waiting_for_a_late_rank_is_told_apart(sharding):
    """The devices start 100 ns apart: the first waits 300 ns for the last, in each of the three steps."""
    found = compare(*map(read, sharding)).candidate.collectives
    assert found.wait_ns == 3 * (300 + 200 + 100)
    assert found.wait_ns + found.transfer_ns == found.total_ns


def test_lost_records_are_no_speed_up(lost):
    result = compare(*map(read, lost))
    assert result.per_call["gemm"]["speedup"] == 1.0
    assert result.per_call["attention"]["speedup"] == 1.0
    assert result.per_step == {"sum_speedup": None, "busy_speedup": None}
    assert result.verdict == "same"
    assert "unequal_calls" in codes(result)


def test_the_invented_case_of_lost_records(shared):
    cases = shared / "cases"
    result = compare(
        read(cases / "12-a-complete_kernel_trace.csv"), read(cases / "12-b-lost-records_kernel_trace.csv")
    )
    assert (result.baseline.total_ns, result.candidate.total_ns) == (1_600_000, 1_020_000)
    assert (result.verdict, result.per_step["busy_speedup"]) == ("same", None)


def test_graph_replay_keeps_all_its_kernels(shared):
    trace = read(shared / "cases" / "11-graph-replay.pt.trace.json")
    result = compare(trace, trace)
    assert result.baseline.calls == {"gemm": 4, "norm": 2}
    assert result.baseline.total_ns == 89_000
    assert result.verdict == "same"


def stepped(tail, kernels, steps=3):
    """Each step runs `kernels`, (name, duration) one after another, in a region of the workload's own spelling."""
    rows = []
    for step in range(steps):
        at = 1 + step * 1_000_000
        for name, duration in kernels:
            rows.append((0, name, at, duration, f"tail={tail} T=16 step={step}"))
            at += duration
    return rows


def test_marked_steps_allow_arms_that_differ_by_design():
    add = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >"
    before = table(stepped("replicated", [(NORM, 10), (GEMM, 100), (add, 20), (add, 20)]))
    after = table(stepped("column_parallel", [(NORM, 10), (OTHER_GEMM, 30), (add, 20)]))
    result = compare(before, after)
    assert result.per_step["sum_speedup"] == pytest.approx(150 / 60)
    assert result.per_step["baseline_sum_ns"] == 150
    assert "unequal_calls" in codes(result)
    assert result.verdict == "faster"


def test_marked_steps_with_records_lost_from_one_of_them_claim_nothing():
    before = table(stepped("a", [(NORM, 10), (GEMM, 100)]))
    after = table(stepped("a", [(NORM, 10), (GEMM, 100)])[:-1])
    result = compare(before, after)
    assert result.per_step["sum_speedup"] is None
    assert result.verdict == "same"


def test_steps_that_hold_other_work_are_not_compared():
    before = table(stepped("a", [(GEMM, 100)]))
    after = table([(*row[:4], row[4].replace("T=16", "T=64")) for row in stepped("a", [(GEMM, 100)])])
    result = compare(before, after)
    assert result.verdict == "not_comparable"
    assert result.per_step["sum_speedup"] is None


def test_kernels_outside_marked_steps_do_not_count():
    rows = stepped("a", [(GEMM, 100)])
    result = compare(table(rows), table([*rows, (0, GEMM, 10_000_000, 10**9, None)]))
    assert result.per_step["sum_speedup"] == 1.0


def test_a_partial_recording_is_never_compared_as_whole():
    rows = stepped("a", [(GEMM, 100)])
    result = compare(table(rows), table(rows, partial=True))
    assert result.verdict == "not_comparable"
    assert result.per_step["sum_speedup"] is None
    assert result.per_call["gemm"]["speedup"] == 1.0


def test_other_numbers_of_devices_are_not_compared():
    rows = stepped("a", [(GEMM, 100)])
    twice = [*rows, *((1, *row[1:]) for row in rows)]
    assert compare(table(rows), table(twice)).verdict == "not_comparable"


def test_a_kind_that_one_arm_lacks_cannot_be_judged_by():
    rows = stepped("a", [(GEMM, 100)])
    result = compare(table(rows), table(rows), kind="moe")
    assert result.verdict == "not_comparable"
    assert result.reasons == ["baseline has no kernels of kind moe", "candidate has no kernels of kind moe",
                              "no moe calls with a time in both"]  # fmt: skip


def test_slower_and_the_margin():
    slow, fast = table(stepped("a", [(GEMM, 110)])), table(stepped("a", [(GEMM, 100)]))
    assert compare(fast, slow).verdict == "slower"
    assert compare(fast, slow, same_within=0.2).verdict == "same"


def test_marks_and_selection():
    assert marks("tail=overlap T=16 step=3 M=16") == {"tail": "overlap", "T": "16", "step": "3", "M": "16"}
    trace = table([*stepped("a", [(GEMM, 1)]), *stepped("b", [(GEMM, 2)], steps=2)])
    assert len(select(trace, tail="b").kernels) == 2
    assert len(select(trace, tail="b", T=64).kernels) == 0
    assert marked_steps(select(trace, tail="a")).count == 3


def test_the_verb(sharding, capsys):
    assert main(["compare", *map(str, sharding), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert answer["verdict"] == "faster"
    assert set(answer["per_call"]["gemm"]) >= {"baseline_ns", "candidate_ns", "speedup"}
    assert set(answer["per_step"]) >= {"sum_speedup", "busy_speedup"}
    assert main(["compare", *map(str, sharding)]) == 0
    assert "3.333" in capsys.readouterr().out


def test_the_verb_says_no_with_exit_1(sharding, capsys):
    assert main(["compare", *map(str, sharding), "--kind", "moe", "--json"]) == 1
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["verdict"] == "not_comparable"


@pytest.mark.parametrize(
    "extra", [["--kind", "nonsense"], ["--same-within", "-1"], ["--baseline-tail", "none"]]
)
def test_unusable_arguments(sharding, capsys, extra):
    assert main(["compare", *map(str, sharding), *extra]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_a_file_without_kernels_does_not_win(sharding, tmp_path, capsys):
    empty = csv(tmp_path / "empty.csv", [])
    assert main(["compare", str(sharding[0]), str(empty), "--json"]) == 2
    assert "no kernels" in capsys.readouterr().err


def test_waiting_for_a_late_rank_is_no_slowness():
    """Rank 1 comes 900 ns late to each collective of one arm; the kernels themselves are equally fast."""

    def rows(late):
        steps = [(step * 10_000 + 1, f"tail=a T=1 step={step}") for step in range(3)]
        both = [(device, start, name) for start, name in steps for device in (0, 1)]
        gemms = [(d, GEMM, s, 100, name) for d, s, name in both]
        waits = [(d, REDUCE, s + 100 + d * late, 50 + (1 - d) * late, name) for d, s, name in both]
        return gemms + waits

    result = compare(table(rows(900)), table(rows(0)))
    assert result.per_step["sum_speedup"] > 3
    assert result.per_step["sum_without_wait_speedup"] == 1.0
    assert result.verdict == "same"
    assert "late_ranks" in codes(result)


def test_a_single_long_call_is_told_and_judged_by_nothing(tmp_path):
    def trace(name, first):
        rows = [
            (0, 1, GEMM, 1_000_000 * i, 1_000_000 * i + (first if i == 1 else 10_000)) for i in range(1, 9)
        ]
        return read(csv(tmp_path / name, rows))

    calm, slow = trace("calm.csv", 10_000), trace("slow.csv", 900_000)
    assert [w.code for w in compare(calm, calm).warnings] == []
    found = compare(slow, calm)
    (told,) = found.warnings
    assert told.code == "one_long_call"
    assert told.message.startswith(
        "baseline: one gemm call took 900.0 us, the next longest 10.0 us: it is 93 %"
    )
    assert found.verdict == "not_comparable"
    assert found.reasons == [told.message]


def test_several_long_calls_are_no_single_one(tmp_path):
    rows = [(0, 1, GEMM, 1_000_000 * i, 1_000_000 * i + (150_000 if i < 4 else 10_000)) for i in range(1, 10)]
    trace = read(csv(tmp_path / "two_sizes.csv", rows))
    assert compare(trace, trace).warnings == []


def test_waiting_that_one_rank_cannot_tell_is_told(tmp_path):
    rows = [(0, 1, GEMM, 10_000, 20_000), (0, 1, REDUCE, 20_000, 50_000), (0, 1, REDUCE, 60_000, 90_000)]
    trace = read(csv(tmp_path / "one_rank.csv", rows))
    told = [w for w in compare(trace, trace).warnings if w.code == "wait_unknown"]
    assert [w.message.split(":")[0] for w in told] == ["baseline", "candidate"]
    assert "86 % of the kernel time" in told[0].message


@pytest.mark.parametrize("by", ["name", "shape"])
def test_rows_by_name_and_by_shape(sharding, capsys, by):
    assert main(["compare", *map(str, sharding), "--by", by, "--json"]) == 0
    rows = {row["key"]: row for row in json.loads(capsys.readouterr().out.splitlines()[-1])["rows"]}
    if by == "shape":
        assert rows["(none)"]["baseline_calls"] == 12
        return
    assert (rows[GEMM]["baseline_median_ns"], rows[GEMM]["candidate_calls"]) == (100_000, 0)
    assert rows[OTHER_GEMM]["speedup"] is None


def test_medians_of_equal_tokens_decide_where_both_have_them():
    """Half as long at every T; one call of the baseline took ten times as long, and steps hold other kernels."""

    def rows(scale, first, extra):
        found = []
        for step in range(20):
            at = 1 + step * 1_000_000
            tokens = 1 + step % 2 * 63
            length = tokens * scale * (10 if step == 0 and first else 1)
            found.append((0, GEMM, at, length, f"tail=a T={tokens}"))
            found += [(0, NORM, at + length + i, 1, None) for i in range(extra if step < 5 else 1)]
        return found

    result = compare(table(rows(200, True, 1)), table(rows(100, False, 3)))
    assert (result.verdict, result.basis) == ("faster", "median time per gemm call of equal work")
    assert result.per_call["gemm"]["work_speedup"] == 2.0


def test_one_call_more_leaves_steps_comparable():
    rows = [(0, GEMM, 1 + i * 1_000, 139, None) for i in range(134)]
    faster = [(0, GEMM, 1 + i * 1_000, 100, None) for i in range(133)]
    result = compare(table(rows), table(faster))
    assert (result.verdict, result.basis) == ("faster", "busy time per step")
