"""One run written in every format must read as one and the same table; a directory of all of them counts it once."""

import gzip
import json

import pytest
import trace_files as files

from latent_moe.errors import InputError
from latent_moe.lab.traces import metrics
from latent_moe.lab.traces.read import read

N = 40
MARKERS = {"layer M=16 N=896 K=3584": (4_999_000, 5_010_000)}


def write(folder, kind, spans=None):
    spans = list(spans or files.spans(N))
    if kind == "json":
        return files.tool_json(folder / "77_results.json", files.tool_entry(spans, markers=MARKERS))
    if kind == "rocpd":
        return files.rocpd(folder / "77_results.db", spans, markers=MARKERS)
    if kind == "csv":
        return files.csv_trace(folder / "77_kernel_trace.csv", spans)
    return files.kineto_json(folder / "run.pt.trace.json", files.kineto_events(spans))


@pytest.mark.parametrize("kind", ["json", "rocpd", "csv", "kineto"])
def test_every_format_gives_the_same_kernels(tmp_path, kind):
    table = read(write(tmp_path, kind)).table
    spans = list(files.spans(N))
    assert table.name.tolist() == [s.name for s in spans]
    assert table.start_ns.tolist() == [s.start for s in spans]
    assert table.dur_ns.tolist() == [400] * N
    assert set(table.agent) == {"GPU 4" if kind == "kineto" else "Agent 4"}


@pytest.mark.parametrize("kind", ["json", "csv", "kineto"])
def test_gzip_reads_the_same(tmp_path, kind):
    plain = write(tmp_path, kind)
    packed = tmp_path / "packed" / f"{plain.name}.gz"
    packed.parent.mkdir()
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert read(packed).table.dur_ns.tolist() == read(plain).table.dur_ns.tolist()


@pytest.mark.parametrize("kind", ["json", "rocpd"])
def test_markers_become_regions(tmp_path, kind):
    trace = read(write(tmp_path, kind))
    assert trace.ranges["name"].values == list(MARKERS)
    inside = trace.table[trace.table.region.notna()]
    assert 0 < len(inside) < N
    assert set(inside[inside.kind == "gemm"].N) == {896}


def test_a_directory_counts_one_run_once(tmp_path):
    for kind in ("json", "rocpd", "csv"):
        write(tmp_path, kind)
    (tmp_path / "manifest.json").write_text('{"name": "run"}')
    trace = read(tmp_path)
    assert (len(trace.kernels), trace.processes) == (N, ["77"])
    assert len([text for text in trace.ignored if "the same run as" in text]) == 2
    (told,) = [note.message for note in trace.warnings if note.code == "same_run"]
    assert told.endswith("(and 1 more like it)")
    assert len(trace.ranges) == 1


def test_shards_and_processes_are_added_up(tmp_path):
    files.rocpd(tmp_path / "1_results.db", files.spans(10), guid="0001-aaaa", pid=1)
    files.rocpd(tmp_path / "2_results.db", files.spans(20), guid="0002-aaaa", pid=2)
    files.csv_trace(tmp_path / "1_kernel_trace.csv", files.spans(10))
    trace = read(tmp_path)
    assert (len(trace.kernels), trace.processes) == (30, ["1", "2"])


def test_a_merged_database_keeps_its_recordings_apart(tmp_path):
    path = tmp_path / "merged.db"
    for pid in (5, 6):
        files.rocpd(path, files.spans(10, start=pid * 1000), guid=f"000{pid}-bbbb", pid=pid, threads=[77])
    trace = read(path)
    assert (len(trace.kernels), trace.processes) == (20, ["5", "6"])
    assert set(trace.table.name) == set(files.NAMES)


@pytest.mark.parametrize("schema", ["3", "3.0.0", "3.0.5"])
def test_rocpd_schema_versions(tmp_path, schema):
    assert len(read(files.rocpd(tmp_path / "a.db", files.spans(N), schema=schema)).kernels) == N


def test_all_entries_of_the_json_list_are_read(tmp_path):
    entries = [files.tool_entry(files.spans(5), pid=pid) for pid in (3, 4)]
    trace = read(files.tool_json(tmp_path / "a.json", *entries))
    assert (len(trace.kernels), trace.processes) == (10, ["3", "4"])


def test_ranks_are_told_apart_even_with_one_process_id(tmp_path):
    call = {
        "ph": "X",
        "cat": "cuda_runtime",
        "name": "hipLaunchKernel",
        "pid": 9,
        "tid": 9,
        "ts": 1,
        "dur": 1,
    }
    for rank in (0, 1):
        events = [call, *files.kineto_events(files.spans(10))]
        files.kineto_json(tmp_path / f"r{rank}.json", events, distributedInfo={"rank": rank})
    trace = read(tmp_path)
    assert len(trace.kernels) == 20
    assert {row.key: row.calls for row in metrics.group(trace.kernels, "rank")} == {
        "rank 0": 10,
        "rank 1": 10,
    }
    assert len(trace.processes) == 2


def test_blocks_of_the_stream_end_anywhere(tmp_path):
    from latent_moe.lab.traces.readers.kineto_stream import EventStream

    events = files.kineto_events(files.spans(200))
    nested = {"ph": "X", "cat": "cpu_op", "name": 'a "},{" b', "args": {"list": [{"a": 1}, {"b": 2}]}}
    path = files.kineto_json(tmp_path / "a.json", [event for e in events for event in (e, nested)])
    for size in (64, 257, 1000, 10_000, 1 << 20):
        found = [e for batch in EventStream(path, block_bytes=size) for e in batch.events]
        assert [e.name for e in found if e.cat == "kernel"] == [e["name"] for e in events], size


def test_the_view_is_compared_with_the_table(tmp_path):
    trace = read(files.rocpd(tmp_path / "a.db", files.spans(6), threads=[]))
    assert len(trace.kernels) == 6
    assert "view_disagrees" in {warning.code for warning in trace.warnings}


def test_kernels_without_a_time_are_counted_apart(tmp_path):
    events = files.kineto_events(files.spans(4))
    del events[0]["dur"]
    trace = read(files.kineto_json(tmp_path / "a.json", events))
    assert (metrics.calls(trace.kernels), metrics.total_ns(trace.kernels)) == (3, 1_200)
    assert trace.table.dur_ns.isna().sum() == 1
    assert "untimed" in {warning.code for warning in trace.warnings}


def test_host_damage_is_read_past_with_a_warning(tmp_path):
    path = files.kineto_json(tmp_path / "a.json", files.kineto_events(files.spans(8)))
    text = path.read_bytes()
    broken = b'{"ph": "X", "cat": "cpu_op", "name": "\xff\x01", "ts": inf, "dur": NaN, "pid": 1, "tid": 1}, '
    path.write_bytes(text.replace(b'"traceEvents": [', b'"traceEvents": [' + broken))
    trace = read(path)
    assert len(trace.kernels) == 8
    assert "damaged_text" in {warning.code for warning in trace.warnings}


def test_a_kernels_own_damaged_time_is_an_error(tmp_path):
    events = files.kineto_events(files.spans(8))
    events[3]["ts"] = "soon"
    with pytest.raises(InputError, match=r"a\.json: a kernel's record cannot be read"):
        read(files.kineto_json(tmp_path / "a.json", events))


def test_names_with_commas_and_no_quotes_are_put_together(tmp_path):
    path = files.csv_trace(tmp_path / "1_kernel_trace.csv", files.spans(3))
    name = files.NAMES[2]
    path.write_text(path.read_text().replace(f'"{name}"', name))
    assert name in read(path).table.name.tolist()


def test_semicolons_and_utf16_are_read(tmp_path):
    path = files.csv_trace(tmp_path / "1_kernel_trace.csv", files.spans(3, names=(files.GEMM,)))
    path.write_bytes(path.read_text().replace(",", ";").encode("utf-16"))
    assert len(read(path).kernels) == 3


def test_api_records_give_kernels_their_launch_time(tmp_path):
    entry = files.tool_entry(files.spans(2))
    entry["buffer_records"]["hip_api"] = [
        {
            "thread_id": 5,
            "correlation_id": {"internal": i},
            "start_timestamp": 100 * i,
            "end_timestamp": 100 * i + 9,
        }
        for i in (1, 2)
    ]
    kernels = read(files.tool_json(tmp_path / "a.json", entry)).kernels
    assert (kernels["launch_ns"].tolist(), kernels["thread"].tolist()) == ([100, 200], [5, 5])


def test_a_marker_file_beside_the_kernels_gives_regions(tmp_path):
    files.csv_trace(tmp_path / "77_kernel_trace.csv", files.spans(10))
    (tmp_path / "77_marker_api_trace.csv").write_text(
        '"Domain","Function","Process_Id","Thread_Id","Correlation_Id","Start_Timestamp","End_Timestamp"\n'
        '"MARKER_CORE_API","tail",77,77,9001,4999000,5002000\n'
    )
    assert "tail" in read(tmp_path).table.region.tolist()


def test_an_export_beside_its_recording_is_not_counted_again(tmp_path):
    from latent_moe.lab.traces.export import write_chrome_trace

    trace = read(write(tmp_path, "rocpd"))
    write_chrome_trace(trace, tmp_path / "export.json")
    assert read(tmp_path / "export.json").table.start_ns.tolist() == trace.table.start_ns.tolist()
    assert len(read(tmp_path).kernels) == N


def test_json_of_the_readers_own_output_is_plain(tmp_path):
    from latent_moe.cli.kernels import summary

    answer = summary(read(write(tmp_path, "csv")), "kind")
    assert json.loads(json.dumps(answer)) == answer


@pytest.mark.parametrize("field", ["thread_id", "correlation_id", "stream_id", "dispatch_info"])
def test_a_dispatch_damaged_outside_its_times_is_kept(tmp_path, field):
    entry = files.tool_entry(files.spans(6))
    entry["buffer_records"]["kernel_dispatch"][2][field] = "broken"
    entry["metadata"]["pid"] = "broken"
    entry["kernel_symbols"].append({"kernel_id": "broken"})
    trace = read(files.tool_json(tmp_path / "a.json", entry))
    assert (len(trace.kernels), metrics.total_ns(trace.kernels)) == (6, 2_400)
    assert {"damaged_text", "damaged_record"} <= {warning.code for warning in trace.warnings}


def test_control_characters_and_bad_utf8_in_names_are_read_past(tmp_path):
    path = files.tool_json(tmp_path / "a.json", files.tool_entry(files.spans(6)))
    path.write_bytes(
        path.read_bytes().replace(b'"rmsnorm"', b'"rms\x07norm\xfe"').replace(b'"pid": 77', b'"pid": inf')
    )
    trace = read(path)
    assert len(trace.kernels) == 6
    assert any(name.startswith("rms norm") for name in trace.kernels["name"].values)


def test_a_kernel_event_damaged_outside_its_times_is_kept(tmp_path):
    events = files.kineto_events(files.spans(6))
    events[2]["args"] = events[3]["tid"] = [["broken"]]
    assert metrics.total_ns(read(files.kineto_json(tmp_path / "a.json", events)).kernels) == 2_400


def test_legacy_rocprof_csv_statistics_and_database(tmp_path):
    import sqlite3

    csv = tmp_path / "a.csv"
    csv.write_text(
        '"Index","KernelName","gpu-id","queue-id","pid","BeginNs","EndNs"\n0,"a.kd",8,0,5,100,150\n1,"b",8,0,5,200,210\n'
    )
    assert read(csv).table.dur_ns.tolist() == [50, 10]
    stats = tmp_path / "s.csv"
    stats.write_text('"Name","Calls","TotalDurationNs","AverageNs","Percentage"\n"a",3,100,33,100\n')
    trace = read(stats)
    assert (
        metrics.calls(trace.kernels),
        metrics.total_ns(trace.kernels),
        metrics.busy_ns(trace.kernels),
    ) == (3, 100, None)
    assert trace.table.start_ns.isna().all()
    with sqlite3.connect(tmp_path / "results.db") as db:
        db.execute(
            'CREATE TABLE A ("Index" INT, KernelName TEXT, "gpu-id" INT, "queue-id" INT, BeginNs INT, EndNs INT)'
        )
        db.executemany(
            "INSERT INTO A VALUES (?,?,?,?,?,?)", [(0, "a", 8, 0, 100, 150), (1, "b", 8, 0, 200, 230)]
        )
    db.close()
    assert read(tmp_path / "results.db").formats == ["rocprof v1 database"]
    assert metrics.total_ns(read(tmp_path / "results.db").kernels) == 80


def test_perfetto_traces_with_interned_names(tmp_path):
    pytest.importorskip("perfetto")
    path = files.pftrace(tmp_path / "a.pftrace", files.spans(8))
    trace = read(path)
    assert trace.table.name.tolist() == [s.name for s in files.spans(8)]
    assert (metrics.total_ns(trace.kernels), trace.processes) == (3_200, ["77"])
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(InputError, match="truncated Perfetto trace at byte"):
        read(path)
    assert read(path, salvage=True).partial
