"""bench --profile: one short run of an arm under a profiler, and traces that `kernels` and `compare` open."""

import json
import os
import signal
import stat
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from bench_driver import bench, one_line, result_files, write_recipe
from processes import wait_gone

from latent_moe.cli import main
from latent_moe.errors import LatentMoEError
from latent_moe.lab.bench import trace_run
from latent_moe.lab.bench.recipe import load_recipe
from latent_moe.lab.bench.server import SupervisedProcess
from latent_moe.lab.bench.trace_run import without_secrets
from latent_moe.lab.traces.read import read

HERE = Path(__file__).parent
SECRET = "hf_secret0123456789"


@pytest.fixture
def rocm(tmp_path, monkeypatch):
    """A ROCm machine, as far as the choice of the profiler looks, with a stand-in for rocprofv3 on the PATH."""
    tool = tmp_path / "bin" / "rocprofv3"
    tool.parent.mkdir()
    tool.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{HERE / "rocprofv3_of_a_server.py"}" "$@"\n')
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    (tmp_path / "log").mkdir()
    monkeypatch.setattr(trace_run, "describe", lambda: SimpleNamespace(kind="rocm"))
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    return {"ROCTX_STAND_IN_LOG": str(tmp_path / "log")}


def test_under_rocprofv3_the_server_ends_cleanly_and_the_trace_is_written(tmp_path, rocm):
    recipe = write_recipe(tmp_path, two_env=f', HF_TOKEN = "{SECRET}", STAND_IN_LEAVES_AFTER_S = "2"')
    out, mark = tmp_path / "out", f"rocprof-{os.getpid()}"
    done = bench(recipe, out, "--profile", "--json", mark=mark, **rocm)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert (answer["arm"], answer["profiler"]) == ("two", "rocprofv3")
    (database,) = answer["traces"]
    trace = read(out / "traces" / "two")
    assert trace.formats == ["rocpd"]
    assert trace.kernels["region"].objects().tolist() == ["served"], "the range closes where the server ends"
    assert SECRET.encode() not in Path(database).read_bytes()
    assert wait_gone(mark, 5) == []
    options = json.loads((tmp_path / "log" / "options.json").read_text())
    assert (options["kernel_trace"], options["marker_trace"]) == (True, True)
    assert (options["output_format"], options["output_file"]) == (["rocpd"], "%pid%")
    assert result_files(out) == {}, "a profiled run is not for the table"


def test_both_arms_profiled_compare(tmp_path, rocm, capsys):
    recipe, out = write_recipe(tmp_path), tmp_path / "out"
    for arm in ("one", "two"):
        assert bench(recipe, out, "--profile", arm, mark="both", **rocm).returncode == 0
    assert main(["compare", *(str(out / "traces" / arm) for arm in ("one", "two")), "--json"]) in (0, 1)
    answer = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert answer["per_call"]["gemm"]["baseline_ns"] == 1000
    done = bench(recipe, out, "--profile", "one", mark="both", **rocm)
    assert done.returncode == 2
    assert "holds traces already" in one_line(done)


def test_the_words_around_a_server(rocm, tmp_path):
    (entry,) = trace_run.profile_plan(load_recipe("cpu_quick"), "replicated", tmp_path).sessions
    words = (
        *("rocprofv3", "--kernel-trace", "--marker-trace", "--output-format", "rocpd"),
        *("--output-directory", f"{tmp_path}/traces/replicated", "--output-file", "%pid%", "--"),
    )
    assert tuple(entry.server.words[: len(words)]) == words
    assert all("--profile" not in run.command.all_words for run in entry.runs)
    assert float(entry.server.env["VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS"]) == entry.grace_s > 60


def test_vllms_own_profiler_records_the_measured_requests_alone(tmp_path):
    plan = trace_run.profile_plan(load_recipe("cpu_quick"), "replicated", tmp_path)
    (entry,) = plan.sessions
    words = entry.server.all_words
    setting = json.loads(words[words.index("--profiler-config") + 1])
    traces = str(tmp_path / "traces" / "replicated")
    assert (setting["profiler"], setting["torch_profiler_dir"]) == ("torch", traces)
    warmup, measured = entry.runs
    assert "--profile" in measured.command.added
    assert "--profile" not in (*measured.command.words, *warmup.command.all_words)
    assert (entry.answers, plan.parameters["osl"], plan.parameters["pairs"]) == (None, 8, 1)


def test_a_profiler_that_writes_nothing_is_said(tmp_path):
    done = bench(write_recipe(tmp_path), tmp_path / "out", "--profile", mark="nothing")
    assert done.returncode == 1
    assert "torch wrote no trace into" in one_line(done)


def test_a_profile_is_one_run(tmp_path):
    for options in (["--resume"], ["--pairs", "2"], ["--dry-run"]):
        done = bench(write_recipe(tmp_path), tmp_path / "out", *options, "--profile", mark="unused")
        assert done.returncode == 2
        assert "one short run" in one_line(done)
    done = bench(write_recipe(tmp_path), tmp_path / "out", "--profile", "third", mark="unused")
    assert done.returncode == 2
    assert "unknown arm 'third' (there are: one, two)" in one_line(done)


def test_a_trace_whose_secret_cannot_be_taken_out_is_removed(tmp_path):
    folder = tmp_path / "traces"
    folder.mkdir()
    (folder / "unknown.json").write_text(json.dumps({"anything": SECRET}))
    with pytest.raises(LatentMoEError):
        without_secrets(folder, [SECRET])
    assert list(tmp_path.rglob("*.json")) == []


SLOW_TO_LEAVE = """
import signal, sys, time
def leave(*_):
    time.sleep(2)
    print("wrote its traces", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
print("up", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize(("grace_s", "wrote"), [(0.5, False), (30, True)])
def test_who_needs_time_to_end_gets_it(tmp_path, grace_s, wrote):
    process = SupervisedProcess([sys.executable, "-c", SLOW_TO_LEAVE], {}, tmp_path / "log", grace_s=grace_s)
    deadline = time.monotonic() + 20
    while not process.tail().endswith("up") and time.monotonic() < deadline:
        time.sleep(0.05)
    process.stop()
    assert process.tail().endswith("wrote its traces") == wrote
    assert process.exit_code == (0 if wrote else 128 + signal.SIGKILL)


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_real_vllm_under_torch_profiler_both_arms(tmp_path, capsys):
    pytest.importorskip("vllm")
    out = tmp_path / "out"
    for arm in ("replicated", "column_parallel"):
        assert main(["bench", "cpu_quick", "--profile", arm, "--out", str(out)]) == 0
    capsys.readouterr()
    traces = {arm: read(out / "traces" / arm) for arm in ("replicated", "column_parallel")}
    for arm, rows in (("replicated", 2048), ("column_parallel", 1024)):
        table = traces[arm].table
        assert sorted(table["rank"].unique().tolist()) == [0, 1]
        ups = table[(table["kind"] == "gemm") & (table["K"] == 1536) & (table["N"] == rows)]
        assert len(ups) > 0, "the up-projection is in the trace with its shape"
    folders = [str(out / "traces" / arm) for arm in traces]
    assert main(["kernels", folders[0], "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["calls"] == len(traces["replicated"].table)
    main(["compare", *folders, "--json"])
    answer = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert answer["verdict"] != "not_comparable", answer["reasons"]
