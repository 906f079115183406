"""Recordings of jobs as they really lie about (pods, merges, shards, lost records), and the right reading of each.

The inputs are invented and small; databases are stored as SQL text. Times in ns.
"""

import gzip
import shutil
import sqlite3

import pytest
from trace_files import GEMM, NCCL, Span, csv_trace, kineto_events, kineto_json, spans

from latent_moe.errors import InputError
from latent_moe.lab.traces import metrics
from latent_moe.lab.traces.collectives import collectives
from latent_moe.lab.traces.compare import compare
from latent_moe.lab.traces.read import read


@pytest.fixture
def case(fixtures, tmp_path):
    """A case by its number: a copy of its file or folder, with databases made from their text."""

    def copy(number):
        (source,) = (p for p in (fixtures / "traces" / "cases").iterdir() if p.name.startswith(f"{number}-"))
        target = tmp_path / source.name
        if source.is_dir():
            shutil.copytree(source, target)
        else:
            shutil.copyfile(source, target)
        for text in [*target.rglob("*.sql.gz"), *([target] if target.name.endswith(".sql.gz") else [])]:
            database = text.with_name(text.name.replace(".sql.gz", ".db"))
            with sqlite3.connect(database) as connection:
                connection.executescript(gzip.decompress(text.read_bytes()).decode())
            connection.close()
            text.unlink()
            target = database if text == target else target
        return target

    return copy


def figures(trace):
    """(kernels with a time, sum, busy, devices)."""
    devices = len(metrics.busy_by(trace.kernels))
    return (
        metrics.calls(trace.kernels),
        metrics.total_ns(trace.kernels),
        metrics.busy_ns(trace.kernels),
        devices,
    )


def codes(trace):
    return {note.code for note in trace.warnings}


def kinds(trace):
    return {row.key: (row.calls, row.total_ns) for row in metrics.group(trace.kernels, "kind")}


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        ("01", (24, 1_680_000, 1_680_000, 2)),
        ("03", (48, 3_360_000, 3_360_000, 4)),
        ("04", (24, 1_680_000, 1_680_000, 2)),
        ("05", (24, 1_680_000, 1_680_000, 2)),
    ],
)
def test_pods_with_one_process_id_are_different_devices(case, number, expected):
    trace = read(case(number))
    assert figures(trace) == expected
    assert not trace.kernels["flagged"].any()
    assert collectives(trace.kernels).overlap_with_gemm_ns == 0
    assert len(set(trace.processes)) == expected[3]


def test_pods_are_named_after_their_hosts(case):
    assert read(case("01")).processes == ["77 (pod-a)", "77 (pod-b)"]


def test_kinds_of_four_hosts(case):
    assert kinds(read(case("03"))) == {"gemm": (24, 2_400_000), "collective": (24, 960_000)}


@pytest.mark.parametrize(("number", "left_out"), [("05", 2), ("06-sglang-merged-distinct-devices-dir", 4)])
def test_shards_beside_their_merge_count_once(case, fixtures, tmp_path, number, left_out):
    trace = read(case("05") if number == "05" else fixtures / "traces" / "cases" / number)
    assert len([text for text in trace.ignored if "the same run as" in text]) == left_out
    assert [note.code for note in trace.warnings].count("same_run") == 1
    assert metrics.total_ns(trace.kernels) in (1_680_000, 1_400_000)
    assert not trace.partial


def test_a_merged_trace_tells_its_ranks(fixtures):
    trace = read(fixtures / "traces" / "cases" / "06-sglang-merged-distinct-devices.trace.json.gz")
    assert figures(trace) == (40, 1_400_000, 1_400_000, 4)
    assert {row.key: row.calls for row in metrics.group(trace.kernels, "rank")} == {
        f"rank {rank}": 10 for rank in range(4)
    }


def test_barriers_are_no_kernels(case):
    trace = read(case("08"))
    assert "Marker" not in trace.kernels["name"].values
    assert not trace.kernels["flagged"].any()
    assert kinds(trace)["gemm"] == (2, 82_000)


def test_ranks_whose_times_count_from_different_moments_are_aligned(case):
    trace = read(case("09"))
    assert (metrics.span_ns(trace.kernels), collectives(trace.kernels).wait_ns) == (528_000, 8_000)


def test_missing_ranks_are_counted(case):
    (note,) = (note for note in read(case("20")).warnings if note.code == "ranks_missing")
    assert "3 of 8 ranks" in note.message


def test_two_sessions_in_one_folder_are_told(case):
    trace = read(case("31"))
    (note,) = (note for note in trace.warnings if note.code == "several_recordings")
    assert "900 s" in note.message
    assert metrics.calls(trace.kernels) == 20


def test_launches_without_kernels_are_lost_records(case):
    with pytest.raises(InputError, match="5 launches but no kernels: GPU records were lost"):
        read(case("11-launches"))


def test_two_writers_in_one_file_are_refused_or_read_in_part(case):
    path = case("38a")
    with pytest.raises(
        InputError, match=r"19 events \(19 of them kernels\) stand behind the event list of 40"
    ):
        read(path)
    trace = read(path, salvage=True)
    assert (metrics.calls(trace.kernels), trace.partial) == (40, True)


def test_a_rank_that_lacks_kernels_is_named(tmp_path):
    for rank, names in enumerate(((GEMM, NCCL), (GEMM, NCCL), (GEMM,))):
        kernels = list(spans(4, names=names))
        path = tmp_path / f"r{rank}.json"
        kineto_json(path, kineto_events(kernels), distributedInfo={"rank": rank, "world_size": 3})
    (note,) = (note for note in read(tmp_path).warnings if note.code == "kernels_missing")
    assert note.message == "rank 2 has no collective kernels, which 2 other devices have"


@pytest.mark.parametrize("stamp", [0, 0.0])
def test_a_stamp_of_zero_is_a_kernel_without_a_time(tmp_path, stamp):
    events = kineto_events(spans(3, start=5_000_000_000))
    events[1]["ts"] = stamp
    trace = read(kineto_json(tmp_path / "zero.json", events))
    assert (metrics.calls(trace.kernels), len(trace.kernels)) == (2, 3)
    assert metrics.span_ns(trace.kernels) == 1_400


def test_files_that_claim_one_device_at_once_are_kept_apart(tmp_path):
    for name, start in (("one", 5_000_000), ("two", 5_000_150)):
        kineto_json(tmp_path / f"{name}.json", [*host_event(77), *kineto_events(spans(6, start=start))])
    trace = read(tmp_path)
    assert "device_claimed_twice" in codes(trace)
    assert figures(trace) == (12, 4_800, 4_800, 2)


def host_event(pid):
    return [
        {"ph": "X", "cat": "cuda_runtime", "name": "x", "pid": pid, "tid": 1, "ts": 1, "dur": 1, "args": {}}
    ]


def test_a_stream_with_many_impossible_spans_is_refused(tmp_path):
    tangled = [Span(GEMM, start, start + 1_000) for start in range(5_000_000, 5_020_000, 300)]
    with pytest.raises(InputError, match=r"more than one device, and nothing in the file tells them apart"):
        read(csv_trace(tmp_path / "tangled_kernel_trace.csv", tangled))


def test_rocprofv2_tells_its_devices(case):
    trace = read(case("15"))
    assert (figures(trace), trace.formats) == ((12, 600_000, 600_000, 3), ["rocprofv2 CSV"])


@pytest.mark.parametrize("number", ["21", "21b"])
def test_agents_as_numbers_and_as_text(case, number):
    trace = read(case(number))
    assert figures(trace) == (16, 1_120_000, 1_120_000, 2)
    assert sorted(trace.kernels["agent"].values) == ["Agent 4", "Agent 5"]


def test_rocprofv3_statistics_alone_are_read(case):
    assert kinds(read(case("35"))) == {"gemm": (56, 4_127_200), "collective": (4, 200_000)}


def test_of_legacy_statistics_only_those_of_kernels_count(case):
    trace = read(case("41"))
    assert (metrics.calls(trace.kernels), metrics.total_ns(trace.kernels)) == (2, 60_000)
    assert len(trace.ignored) == 2


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("n.csv", "Start (ns),Duration (ns),CorrId,Name\n1,2,3,k\n", "Nsight Systems CSV"),
        ("p.csv", "Sample_Timestamp,Exec_Mask,Dispatch_Id,Instruction\n1,2,3,x\n", "PC sampling"),
        ("j.json", '{"traceEvents": [{"ph": "M", "args": {"name": "/device:GPU:0"}}]}', "JAX"),
    ],
)
def test_known_formats_that_are_not_read_are_named_with_one_that_is(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=f"{message}.*read here"):
        read(tmp_path / name)


@pytest.mark.parametrize("table", ["rocpd_op", "CUPTI_ACTIVITY_KIND_KERNEL"])
def test_databases_of_other_tools_are_named(tmp_path, table):
    with sqlite3.connect(tmp_path / "x.db") as connection:
        connection.execute(f"CREATE TABLE {table} (id INTEGER)")
    connection.close()
    with pytest.raises(InputError, match="read here"):
        read(tmp_path / "x.db")


def test_legacy_chrome_json_names_the_file_to_use(case):
    with pytest.raises(InputError, match=r"legacy rocprof; its results\.csv"):
        read(case("42"))


def test_a_pod_against_its_job_is_compared_per_call(case):
    folder = case("03")
    result = compare(read(folder / "pod-0"), read(folder))
    assert (result.verdict, result.per_call["gemm"]["speedup"]) == ("same", 1.0)
    assert result.per_step["busy_speedup"] is None


def test_a_large_gemm_in_both_steps_leaves_them_comparable(case):
    before, after = read(case("40a")), read(case("40b"))
    result = compare(before, after)
    assert (result.verdict, result.basis) == ("faster", "busy time per step")
    assert result.per_step["busy_speedup"] == pytest.approx(740 / 580)
    assert compare(before, before).verdict == "same"


def test_engines_that_are_all_rank_0_do_not_wait_for_each_other(case):
    found = collectives(read(case("32")).kernels)
    assert (found.calls, found.wait_ns, found.ranks) == (10, None, None)


def test_waiting_is_counted_inside_each_process_group(tmp_path):
    """Ranks 0 and 1, and 2 and 3: rank 1 is 100 ns late for each of three collectives, rank 3 is not; the second pair
    runs 50 us after the first."""
    for rank in range(4):
        start = 5_000_000 + (rank // 2) * 50_000 + (100 if rank == 1 else 0)
        kernels = [Span(NCCL, start + i * 2_000, start + i * 2_000 + 1_000, agent=rank) for i in range(3)]
        events = kineto_events(kernels)
        for event in events:
            event["name"] = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
            event["args"] |= {"Process Group Ranks": "[0, 1]" if rank < 2 else "[2, 3]"}
            event["args"] |= {"In msg nelems": 500, "dtype": "BFloat16"}
        kineto_json(tmp_path / f"r{rank}.json", events, distributedInfo={"rank": rank, "world_size": 4})
    found = collectives(read(tmp_path).kernels)
    assert (found.wait_ns, found.message_bytes) == (300, 12 * 1_000)
    assert {row["rank"]: row["late_ns"] for row in found.ranks} == {
        "rank 0": 0, "rank 1": 300, "rank 2": 0, "rank 3": 0,
    }  # fmt: skip
    assert found.bus_gb_per_s == pytest.approx(1.0)


def test_an_engine_of_a_data_parallel_job_keeps_its_ranks_and_groups(repository, tmp_path):
    recorded = repository / "profiles" / "h200x2_tails" / "trace_column_parallel.json.gz"
    served = tmp_path / "dp0_pp0_tp0_ep0_rank0.1.pt.trace.json"
    served.write_bytes(gzip.decompress(recorded.read_bytes()).replace(b"{", b'{"hostname": "node-3", ', 1))
    plain, engine = read(recorded), read(served)
    assert len(engine.kernels) == len(plain.kernels)
    assert set(engine.kernels["rank"].tolist()) == {0}
    assert all(text.startswith("dp 0") for text in engine.kernels["group"].values)
