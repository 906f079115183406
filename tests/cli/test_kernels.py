"""`latent-moe kernels`: the JSON contract, the groupings, what a person reads."""

import json
import subprocess
import sys

import pytest

from latent_moe.cli import main

KEYS = {"files", "processes", "calls", "total_ns", "busy_ns", "untimed_calls", "partial", "rows", "warnings"}


def run(capsys, *args):
    code = main(["kernels", *map(str, args)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_json_has_the_contracts_keys(capsys, fixtures):
    code, out, _ = run(capsys, fixtures / "traces" / "sharded_kernel_trace.csv", "--json")
    answer = json.loads(out.splitlines()[-1])
    assert code == 0
    assert answer.keys() >= KEYS
    assert (answer["files"], answer["processes"], answer["calls"], answer["untimed_calls"]) == (1, 1, 24, 0)
    assert (answer["total_ns"], answer["busy_ns"], answer["partial"]) == (900_000, 780_000, False)
    assert all({"key", "calls", "total_ns", "mean_ns", "median_ns"} <= row.keys() for row in answer["rows"])
    assert sum(row["total_ns"] for row in answer["rows"]) == answer["total_ns"]


@pytest.mark.parametrize(("by", "keys"), [("kind", 2), ("name", 2), ("region", 1), ("rank", 4)])
def test_groupings(capsys, fixtures, by, keys):
    _, out, _ = run(capsys, fixtures / "traces" / "sharded_kernel_trace.csv", "--by", by, "--json")
    assert len(json.loads(out)["rows"]) == keys


def test_text_shows_the_unknown_share_and_the_warnings(capsys, fixtures):
    _, out, _ = run(capsys, fixtures / "traces" / "impossible.pt.trace.json")
    assert "unknown kernels: " in out
    assert "warning: 1 kernels still ran" in out


def test_salvage_says_partial(capsys, fixtures):
    code, out, _ = run(capsys, fixtures / "traces" / "truncated_results.json", "--salvage", "--json")
    answer = json.loads(out)
    assert (code, answer["calls"], answer["partial"], answer["warnings"][0]["code"]) == (
        0,
        16,
        True,
        "partial",
    )


def test_neither_torch_nor_pandas_is_imported_for_json(fixtures):
    code = (
        "import sys; from latent_moe.cli import main; main(['kernels', sys.argv[1], '--json']); "
        "print([name for name in ('torch', 'pandas', 'rich', 'plotly') if name in sys.modules])"
    )
    path = fixtures / "traces" / "graph_replay.pt.trace.json"
    done = subprocess.run(
        [sys.executable, "-c", code, path], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"
