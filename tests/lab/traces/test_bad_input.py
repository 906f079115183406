"""Bad input: exit 2 and one line that names file and fault; never a traceback, never a silent zero."""

import gzip
import subprocess
import sys

import pytest
import trace_files as files

from latent_moe.cli import main
from latent_moe.errors import InputError
from latent_moe.lab.traces.read import read


def truncated(path):
    path.write_bytes(path.read_bytes()[:-200])
    return path


def rounded(path):
    path.write_text(path.read_text().replace(",5000000,", ",8.1E+14,"))
    return path


def overwritten(path):
    data = bytearray(path.read_bytes())
    data[4096:12_288] = b"\x5a" * 8192
    path.write_bytes(data)
    return path


def short_gzip(path):
    packed = path.with_suffix(".gz")
    packed.write_bytes(gzip.compress(path.read_bytes())[:-40])
    return packed


def bad_inputs(folder):
    """name -> (a path, what the line must say)."""
    spans = list(files.spans(40))
    csv = files.csv_trace(folder / "1_kernel_trace.csv", spans)
    empty = folder / "empty.json"
    empty.touch()
    (folder / "nothing").mkdir()
    (folder / "noise.db").write_bytes(b"SQLite format 3\x00" + b"\x17" * 3000)
    (folder / "prose.csv").write_text("Dear reader,\nthis is no trace.\n")
    header = folder / "h_kernel_trace.csv"
    header.write_text(csv.read_text().splitlines()[0] + "\n")
    damaged = overwritten(files.rocpd(folder / "d.db", spans))
    return {
        "empty": (empty, "empty file"),
        "directory": (folder / "nothing", "nothing in it"),
        "absent": (folder / "absent.db", "no such file"),
        "header only": (header, "no kernels"),
        "truncated tool JSON": (
            truncated(files.tool_json(folder / "t.json", files.tool_entry(spans))),
            "ends at byte",
        ),
        "truncated kineto": (
            truncated(files.kineto_json(folder / "k.json", files.kineto_events(spans))),
            "ends at byte",
        ),
        "truncated CSV": (truncated(files.csv_trace(folder / "2_kernel_trace.csv", spans)), "row 4"),
        "damaged database": (damaged, "damaged"),
        "no database": (folder / "noise.db", "SQLite"),
        "spreadsheet": (
            rounded(files.csv_trace(folder / "3_kernel_trace.csv", spans)),
            "Start_Timestamp, row 2: 8.1E\\+14",
        ),
        "short gzip": (short_gzip(csv), "gzip"),
        "prose": (folder / "prose.csv", "no format"),
        "no kernels": (files.kineto_json(folder / "n.json", []), "no kernels"),
        "no trace": (folder.joinpath("r.json"), "no trace"),
    }


NAMES = (
    *(
        "empty",
        "directory",
        "absent",
        "header only",
        "truncated tool JSON",
        "truncated kineto",
        "truncated CSV",
    ),
    *("damaged database", "no database", "spreadsheet", "short gzip", "prose", "no kernels", "no trace"),
)


@pytest.mark.parametrize("name", NAMES)
def test_one_line_names_file_and_fault_and_the_exit_code_is_2(tmp_path, capsys, name):
    (tmp_path / "r.json").write_text('{"completed": 4, "duration": 2.5}')
    path, fault = bad_inputs(tmp_path)[name]
    assert main(["kernels", str(path), "--json"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert path.name in err
    with pytest.raises(InputError, match=fault):
        read(path)


@pytest.mark.parametrize("kind", ["tool", "kineto", "csv", "gzip"])
def test_salvage_marks_what_it_could_read_as_partial(tmp_path, kind):
    spans = list(files.spans(40))
    path = {
        "tool": lambda: truncated(files.tool_json(tmp_path / "t.json", files.tool_entry(spans))),
        "kineto": lambda: truncated(files.kineto_json(tmp_path / "k.json", files.kineto_events(spans))),
        "csv": lambda: truncated(files.csv_trace(tmp_path / "2_kernel_trace.csv", spans)),
        "gzip": lambda: short_gzip(files.kineto_json(tmp_path / "k.json", files.kineto_events(spans))),
    }[kind]()
    trace = read(path, salvage=True)
    assert trace.partial
    assert 0 < len(trace.kernels) <= 40
    assert "partial" in {warning.code for warning in trace.warnings}


def test_a_damaged_shard_stops_the_reading_of_its_directory(tmp_path):
    files.csv_trace(tmp_path / "1_kernel_trace.csv", files.spans(4))
    truncated(files.csv_trace(tmp_path / "2_kernel_trace.csv", files.spans(40, start=10**9)))
    with pytest.raises(InputError, match=r"2_kernel_trace\.csv"):
        read(tmp_path)
    assert read(tmp_path, salvage=True).partial


def test_the_process_itself_exits_with_2_and_one_line(tmp_path):
    command = [sys.executable, "-m", "latent_moe", "kernels", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


@pytest.mark.parametrize("name", ["bomb.csv.gz", "bomb_results.json.gz", "bomb.pt.trace.json.gz"])
def test_a_packed_file_of_nothing_ends_soon(tmp_path, name):
    heads = {
        "bomb.csv.gz": b"Kind,Agent_Id,Queue_Id,Kernel_Name,Correlation_Id,Start_Timestamp,End_Timestamp\n",
        "bomb_results.json.gz": b'{"rocprofiler-sdk-tool": [',
        "bomb.pt.trace.json.gz": b'{"traceEvents": [',
    }
    with gzip.open(tmp_path / name, "wb", compresslevel=6) as file:
        file.write(heads[name])
        for _ in range(160):
            file.write(b" " * (1 << 20))
    with pytest.raises(InputError, match=r"unpacks to more than|field larger than \d+ times its size"):
        read(tmp_path / name)


def test_names_that_are_no_utf_8_are_read_in_a_perfetto_trace(tmp_path):
    path = files.pftrace(tmp_path / "1.pftrace", files.spans(4, names=("rmsnorm",)))
    path.write_bytes(path.read_bytes().replace(b"rmsnorm", b"rms\xff\xfe_n"))
    trace = read(path)
    assert trace.kernels["name"].values == ["rms\ufffd\ufffd_n"]


def test_a_rank_of_many_digits_is_no_rank(tmp_path):
    events = files.kineto_events(files.spans(4))
    for event in events:
        event["pid"] = "[TP99999999999999999999] 0"
    trace = read(files.kineto_json(tmp_path / "merged.json", events))
    assert set(trace.kernels["rank"].tolist()) == {-1}
