"""doctor: what it says is what this machine has; faults of a child are found and not fatal."""

import json
import sys
from dataclasses import replace

from latent_moe.cli import main
from latent_moe.lab.doctor import Check, examine, gemm_rows, next_command, verbs_here
from latent_moe.platform import describe


def test_the_verb_answers_in_json(capsys):
    code = main(["doctor", "--json"])
    answer = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert code == 0
    assert answer["platform"]["kind"] == describe().kind
    assert all({"name", "ok", "hint"} <= set(check) for check in answer["checks"])


def test_hints_on_rocm_print_the_commands():
    bare = replace(describe(), kind="rocm", aiter=False, vllm_version=None)
    hints = {check.name: check.hint for check in examine(bare) if not check.ok}
    assert "ROCm" in hints["vllm"]
    assert "aiter" in hints["aiter"]
    assert "rocprofiler-sdk" in hints["rocprofv3"]
    assert {"roctx", "rocpd"} <= set(hints)


def test_rows_are_compared_in_a_child():
    rows = gemm_rows.check_rows("cpu")
    wanted = [m for counts, _, _ in gemm_rows.ON_CPU for m in counts]
    assert [row["M"] for row in rows] == wanted
    assert all(row["ok"] and row["rel_diff"] <= gemm_rows.BOUND for row in rows)


def test_a_child_that_dies_costs_one_row(monkeypatch, tmp_path):
    child, code = tmp_path / "child", tmp_path / "child.py"
    child.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{code}" "$@"\n')
    code.write_text(
        "import json, os, sys\n"
        "for m in map(int, sys.argv[4].split(',')):\n"
        "    if m == 95: os.kill(os.getpid(), 11)\n"
        "    print(json.dumps({'M': m, 'N': 1, 'K': 1, 'ok': True, 'rel_diff': 0.0, 'fault': None}), flush=True)\n"
    )
    child.chmod(0o755)
    monkeypatch.setattr(gemm_rows.sys, "executable", str(child))
    rows = gemm_rows.check_rows("cpu")
    assert [row["M"] for row in rows if not row["ok"]] == [95]
    assert [row["M"] for row in rows][:5] == [93, 94, 95, 96, 97]


def test_it_ends_with_the_next_command_and_says_what_each_verb_does(capsys):
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "next: latent-moe tour"
    assert any(line.split()[:1] == ["tails"] and "real ranks" in line for line in lines)
    lack = [Check("python", True, "", True), Check("ranks", False, "install a build with gloo", True)]
    assert next_command(lack) == "ranks: install a build with gloo"
    assert "nothing yet" in verbs_here(replace(describe(), vllm_version=None))["bench"]
