"""Recording: real ranks under torch.profiler, and under a stand-in for rocprofv3 that knows its options."""

import json
import os
import stat
import sys
from collections import Counter
from pathlib import Path

import pytest

from latent_moe.cli import main
from latent_moe.config import KIMI_K3, preset
from latent_moe.errors import InputError, LatentMoEError
from latent_moe.lab.microbench import rocprof
from latent_moe.lab.microbench.workload import Workload, as_json, region_name
from latent_moe.lab.recordings import load_manifest
from latent_moe.lab.traces.compare import compare
from latent_moe.lab.traces.read import read
from latent_moe.lab.traces.steps import marked_steps, marks
from latent_moe.tail_variants.registry import TAILS

HERE = Path(__file__).parent
SMALL = ["--tokens", "2", "8", "--preset", "tiny", "--steps", "3", "--warm-up", "2", "--dtype", "float32"]


def profile(capsys, *arguments):
    code = main(["profile", *arguments, "--json"])
    out = capsys.readouterr()
    return code, json.loads(out.out.splitlines()[-1]) if out.out.strip() else None, out.err


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """rocprofv3 on the PATH and roctx importable, in this process and in those it starts."""
    tool = tmp_path / "bin" / "rocprofv3"
    tool.parent.mkdir()
    tool.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{HERE / "rocprofv3_stand_in.py"}" "$@"\n')
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    (tmp_path / "log").mkdir()
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", f"{HERE / 'stand_in'}:{HERE.parents[2]}")
    monkeypatch.setenv("ROCTX_STAND_IN_LOG", str(tmp_path / "log"))
    monkeypatch.syspath_prepend(str(HERE / "stand_in"))
    return tmp_path / "log"


def test_torch_recording_of_two_tails_reads_and_compares(tmp_path, capsys):
    out = tmp_path / "recording"
    code, answer, _ = profile(capsys, "--tail", "replicated", "column_parallel", *SMALL, "--profiler", "torch", "--out", str(out))  # fmt: skip
    assert code == 0
    assert answer == {"recording": str(out), "profiler": "torch", "tails": ["replicated", "column_parallel"]}
    before, after = read(out / "replicated"), read(out / "column_parallel")
    for trace, columns in ((before, 64), (after, 32)):
        gemms = trace.table[trace.table["kind"] == "gemm"]
        assert set(map(tuple, gemms[["M", "N", "K"]].to_numpy().tolist())) == {
            (2, columns, 32),
            (8, columns, 32),
        }
        assert len(gemms) == 2 * 2 * 3  # ranks, T, steps: no warm-up
        assert (trace.table["kind"] == "collective").sum() == 2 * 2 * 2 * 3
        assert sorted(trace.table["rank"].unique().tolist()) == [0, 1]
        assert marked_steps(trace).count == 6
    result = compare(before, after)
    assert result.per_step["sum_speedup"] > 0
    assert result.baseline.collectives.calls == result.candidate.collectives.calls == 24


def test_manifest_says_what_was_recorded_and_where(tmp_path, capsys):
    out = tmp_path / "recording"
    profile(capsys, "--tail", "replicated", *SMALL, "--tp", "1", "--profiler", "torch", "--out", str(out))
    manifest = load_manifest(out)
    assert manifest.kind == "measured"
    assert manifest.command.startswith(
        "latent-moe profile --tail replicated --tokens 2 8 --tp 1 --preset tiny"
    )
    assert manifest.parameters["tokens"] == [2, 8]
    assert list(manifest.files) == ["replicated/rank0.pt.trace.json.gz"]
    assert "torch" in manifest.software


def test_under_rocprofv3_only_recorded_steps_are_in_the_database(tmp_path, capsys, stand_in):
    out = tmp_path / "recording"
    code, answer, error = profile(
        capsys, "--tail", "replicated", *SMALL, "--profiler", "rocprofv3", "--out", str(out)
    )
    assert code == 0, error
    assert answer["profiler"] == "rocprofv3"
    options = json.loads((stand_in / "options.json").read_text())
    assert options["kernel_trace"]
    assert options["marker_trace"]
    assert options["selected_regions"]
    assert options["output_format"] == ["rocpd"]
    trace = read(out / "replicated")
    assert trace.formats == ["rocpd"]
    assert len(trace.processes) == 2
    steps = Counter((marks(name)["T"], marks(name)["step"]) for name in trace.kernels["region"].objects())
    assert steps == {(t, str(step)): 2 for t in ("2", "8") for step in range(3)}
    assert set(trace.table["N"].tolist()) == {64}
    assert "rocpd is not installed" in load_manifest(out).notes


def test_the_command_line_is_rocprofv3s():
    words = rocprof.command("/opt/rocm/bin/rocprofv3", as_json(Workload(("replicated",), (1,))), Path("out"))
    options = words[: words.index("--")]
    assert options == [
        *("/opt/rocm/bin/rocprofv3", "--kernel-trace", "--marker-trace", "--selected-regions"),
        *("--output-format", "rocpd", "--output-directory", "out", "--output-file", "%pid%"),
    ]


def test_a_profiler_that_fails_or_hangs_is_one_line(tmp_path, monkeypatch):
    tool = tmp_path / "rocprofv3"
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for script, limit, text in (
        ("echo broken; exit 7", 30, "exit code 7: broken"),
        ("sleep 60", 0.5, "ended after"),
    ):
        tool.write_text(f"#!/bin/sh\n{script}\n")
        tool.chmod(0o755)
        with pytest.raises(LatentMoEError, match=text):
            rocprof.record(as_json(Workload(("replicated",), (1,))), tmp_path / "out", limit)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--tail", "nonsense"],
        ["--tail", "column_parallel", "--preset", "tiny", "--tp", "3"],
        ["--tail", "replicated", "--tokens", "0"],
        ["--tail", "replicated", "--steps", "0"],
        ["--tail", "replicated", "--dtype", "int4"],
        ["--tail", "replicated", "--out", __file__],
    ],
)
def test_what_cannot_be_recorded_is_one_line_and_exit_2(capsys, arguments):
    code, _, error = profile(capsys, "--profiler", "torch", *arguments)
    assert code == 2
    assert len([line for line in error.splitlines() if line.startswith("latent-moe:")]) == 1


def test_rocprofv3_without_roctx_or_itself_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="not on the PATH"):
        rocprof.executable()


def test_region_names_carry_the_shape_of_the_one_gemm():
    names = {name: region_name(TAILS[name], KIMI_K3, 16, 8, 3) for name in TAILS}
    assert names["column_parallel"] == "tail=column_parallel T=16 step=3 M=16 N=896 K=3584"
    assert names["replicated"] == "tail=replicated T=16 step=3 M=16 N=7168 K=3584"
    assert names["token_parallel"] == "tail=token_parallel T=16 step=3 M=2 N=7168 K=3584"
    assert names["pipelined"] == "tail=pipelined T=16 step=3"
    assert region_name(TAILS["replicated"], preset("tiny"), 2, 2, 0).endswith("M=2 N=64 K=32")
