"""A whole benchmark with real vLLM: both arms served, measured, compared, and nothing left behind."""

import json
import os
import subprocess
import sys
import time

import psutil
import pytest
from processes import MARK, wait_gone

from latent_moe.cli import main

SECRET = "hf_secret0123456789"


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_cpu_quick_from_the_command_to_the_table(tmp_path, monkeypatch, capsys):
    pytest.importorskip("vllm")
    mark, out = f"real-{os.getpid()}", tmp_path / "out"
    monkeypatch.setenv(MARK, mark)
    monkeypatch.setenv("HF_TOKEN", SECRET)
    assert main(["bench", "cpu_quick", "--out", str(out), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert answer["runs"] == ["runs/column_parallel_pair1_c4.json", "runs/replicated_pair1_c4.json"]
    assert wait_gone(mark, 5) == []
    assert [path for path in out.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()] == []
    ours = {run: json.loads((out / run).read_text())["latent_moe"] for run in answer["runs"]}
    for run, rows in zip(answer["runs"], (1024, 2048), strict=True):
        assert f"N={rows} K=1536" in ours[run]["gemm"], "each arm ran the GEMM it is named after"
    assert len({facts["seed"] for facts in ours.values()}) == 1
    assert main(["table", str(out), "--json"]) == 0
    table = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {row["verdict"] for row in table["rows"]} == {"inconclusive"}, "one pair tells nothing apart"
    assert table["parity"]["tokens"] == 4 * 16
    assert table["parity"]["max_logprob_diff"] < 1e-3
    # Every prompt token but the first: contexts that both arms share whatever they answer.
    assert table["parity"]["prompt_tokens"] == 4 * (32 - 1)
    assert table["parity"]["max_prompt_logprob_diff"] < 1e-3


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_stopped_worker_of_a_real_server_ends_the_run_within_two_minutes(tmp_path):
    pytest.importorskip("vllm")
    mark, out = f"stopped-{os.getpid()}", tmp_path / "out"
    bench = subprocess.Popen(
        [sys.executable, "-m", "latent_moe", "bench", "cpu_quick", "--out", str(out)],
        env={**os.environ, MARK: mark},
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 600
    # The server is up: the client may begin.
    while not list(out.glob("logs/*/client_jobs.go")) and time.monotonic() < deadline:
        time.sleep(0.1)
    (log,) = out.glob("logs/*/server.log")
    workers = [each for each in psutil.Process(bench.pid).children(recursive=True) if "Worker" in each.name()]
    assert len(workers) == 2, log.read_text()[-2000:]
    began = time.monotonic()
    workers[1].suspend()
    _, text = bench.communicate(timeout=130)
    assert time.monotonic() - began < 120
    assert bench.returncode == 1
    assert f"its process {workers[1].pid} (VLLM::Worker" in text.splitlines()[-1]
    assert wait_gone(mark, 5) == []
