"""What the page holds: figures against an independent count, packed rows that unpack, savings with their source."""

import base64
import json
import subprocess
import sys
import zlib

import numpy as np
import pytest

from latent_moe.cli import main
from latent_moe.errors import InputError
from latent_moe.lab.trace_report.data import PLANES, packed_kernels, page_data
from latent_moe.lab.trace_report.page import write
from latent_moe.lab.trace_report.tail_savings import tail_savings
from latent_moe.lab.traces.read import read
from latent_moe.lab.traces.tail_finder import find_tail


@pytest.fixture(scope="module")
def recording(repository):
    return repository / "profiles" / "h200x2_tails_vllm"


def _unpacked(count: int, packed: str) -> dict[str, np.ndarray]:
    planes = np.frombuffer(zlib.decompress(base64.b64decode(packed)), dtype=np.uint8)
    columns, at = {}, 0
    for name, width in PLANES.items():
        table = planes[at : at + width * count].reshape(width, count).astype(np.int64)
        columns[name] = (table << (8 * np.arange(width))[:, None]).sum(axis=0)
        at += width * count
    assert at == len(planes)
    return columns


def test_packed_rows_are_the_kernels(recording):
    kernels = read(recording / "trace_overlap.json.gz").kernels
    count, packed = packed_kernels(kernels)
    columns = _unpacked(count, packed)
    order = np.argsort(kernels["start_ns"], kind="stable")
    assert count == len(kernels)
    assert (np.cumsum(columns["since_ns"]) == kernels["start_ns"][order] - kernels["start_ns"].min()).all()
    assert (columns["dur_ns"] == kernels["dur_ns"][order]).all()
    names = [kernels["name"].values[code - 1] for code in columns["name"]]
    assert names == kernels["name"].objects()[order].tolist()
    shapes = page_data(read(recording / "trace_overlap.json.gz"))["shapes"]
    sizes = {tuple(shapes[code - 1]) for code in columns["shape"] if code}
    assert sizes == {(16, 7168, 3584), (4096, 7168, 3584)}


def test_right_answers_of_the_mi350x_recording(shared):
    data = page_data(read(shared / "traces" / "mi350x_rocprofv3_results.json.gz"))
    assert (data["calls"], data["total_ns"], data["busy_ns"]) == (43915, 4441741378, 4233112334)
    assert data["idle_ns"] / 1e9 == pytest.approx(10.89, abs=0.005)
    assert data["span_ns"] / 1e9 == pytest.approx(15.12, abs=0.005)
    assert sum(gap["gap_ns"] for gap in data["gaps"][:6]) / 1e9 == pytest.approx(8.30, abs=0.005)
    assert sum(data["longest_collectives_ns"]) / 1e9 == pytest.approx(2.12, abs=0.005)
    assert data["collectives"]["total_ns"] / 1e9 == pytest.approx(4.16, abs=0.005)


def test_right_answers_of_the_qwen_recording(shared):
    data = page_data(read(shared / "traces" / "kineto_mi300x_qwen.json.gz"))
    (gemm,) = [row for row in data["gemms"] if row["shape"] == [8944, 2816, 1024]]
    assert gemm["calls"] == 48
    assert gemm["total_ns"] / 48 / 1e3 == pytest.approx(110.6, abs=0.05)
    assert gemm["tflops"] == pytest.approx(466.8, rel=1e-3)


def test_right_answers_of_the_decode_graph(shared):
    data = page_data(read(shared / "traces" / "kineto_vllm_decode_graph.json.gz"))
    layer = data["layer"]
    assert layer["layers"] == 24
    assert [part["part"] for part in layer["parts"]] == ["attention", "moe"]
    assert sum(part["mean_ns"] for part in layer["parts"]) == pytest.approx(layer["mean_ns"])
    assert 24 * layer["mean_ns"] <= data["total_ns"]


def test_verb_on_the_mi350x_recording_in_time_and_memory(shared, tmp_path):
    trace = shared / "traces" / "mi350x_rocprofv3_results.json.gz"
    code = (
        "import resource, sys; from latent_moe.cli import main; code = main(sys.argv[1:]);"
        "use = resource.getrusage(resource.RUSAGE_SELF);"
        # Not ru_maxrss, which a process takes over from the one that started it.
        "peak = next(line for line in open('/proc/self/status') if line.startswith('VmHWM')).split()[1];"
        "print(use.ru_utime + use.ru_stime, int(peak) / 1024, file=sys.stderr); sys.exit(code)"
    )
    words = [sys.executable, "-c", code, "report", str(trace), "-o", str(tmp_path / "x.html"), "--json"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["kernels"] == 43915
    assert answer["bytes"] == (tmp_path / "x.html").stat().st_size <= 3e6
    assert answer["tail"]["form"] == "none"
    seconds, mib = map(float, done.stderr.split()[-2:])
    assert seconds <= 2.5
    assert mib <= 400


def test_exit_codes_of_the_verb(recording, repository, tmp_path, capsys):
    out = ["-o", str(tmp_path / "x.html")]
    with_tail, without = (
        recording / "trace_fused.json.gz",
        repository / "profiles/h200_tp8_shapes/trace_fused.json.gz",
    )
    assert main(["report", str(with_tail), "--tail", *out]) == 0
    assert "tail: fused" in capsys.readouterr().out
    assert main(["report", str(without), *out]) == 0
    assert main(["report", str(without), "--tail", *out]) == 1
    assert "no latent tail: no collective" in capsys.readouterr().out
    (tmp_path / "empty.json").write_text("")
    assert main(["report", str(tmp_path / "empty.json"), *out]) == 2
    assert main(["report", str(with_tail), "--tp", "0", *out]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_savings_come_from_measured_rows_of_the_device(recording):
    finding = find_tail(read(recording / "trace_replicated.json.gz"))
    answer = tail_savings(finding, "h200", 2)
    assert answer["why_no_savings"] is None
    recorded = {"column_parallel", "overlap", "token_parallel", "pipelined", "fused"}
    assert recorded <= set(answer["savings"])
    # What that recording does not hold, the model answers.
    assert {answer["savings"][form]["source"] for form in answer["savings"].keys() - recorded} <= {
        "cost model"
    }
    saving = answer["savings"]["column_parallel"]
    assert (saving["kind"], saving["source"]) == ("measured", "h200x2_tails_vllm")
    # tails.csv: graph at T = 16, eager at T = 4096; three tails of each in six steps.
    head = (recording / "tails.csv").read_text().splitlines()[0].split(",")
    medians = {
        (cells[head.index("tail")], cells[head.index("tokens")], cells[head.index("mode")]): float(
            cells[head.index("median_us")]
        )
        for cells in (line.split(",") for line in (recording / "tails.csv").read_text().splitlines()[1:])
    }
    expected = sum(
        medians["replicated", *case] - medians["column_parallel", *case]
        for case in (("16", "graph"), ("4096", "eager"))
    )
    assert saving["step_ns"] == pytest.approx(1e3 * expected / 2)


def test_savings_of_the_cost_model_have_a_band(recording):
    finding = find_tail(read(recording / "trace_replicated.json.gz"))
    saving = tail_savings(finding, "mi355x", 8)["savings"]["column_parallel"]
    low, high = saving["band90_ns"]
    assert saving["source"] == "cost model"
    assert low < saving["step_ns"] < high


def test_without_device_or_ranks_nothing_is_guessed(recording):
    finding = find_tail(read(recording / "trace_replicated.json.gz"))
    answer = tail_savings(finding, None, None)
    assert answer["savings"] == {}
    assert "--hardware" in answer["why_no_savings"]
    assert "--tp" in answer["why_no_savings"]


def test_baseline_adds_a_comparison(recording, tmp_path):
    arms = [read(recording / f"trace_{tail}.json.gz") for tail in ("column_parallel", "replicated")]
    data = write(tmp_path / "page.html", *arms)
    assert (
        data["compare"]["per_call"]["gemm"]["baseline_ns"]
        > data["compare"]["per_call"]["gemm"]["candidate_ns"]
    )
    assert (tmp_path / "page.html").stat().st_size == data["bytes"]


def test_unknown_hardware_is_refused(recording, tmp_path):
    with pytest.raises(InputError, match="mi355x"):
        write(tmp_path / "page.html", read(recording / "trace_fused.json.gz"), device="abacus")
    assert not list(tmp_path.iterdir())
