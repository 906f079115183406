"""A whole benchmark with real vLLM: both arms served, measured, compared, and nothing left behind."""

import json
import os

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
