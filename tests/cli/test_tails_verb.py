"""`latent-moe tails` on real ranks: rows, checks, a recording that reads back, bad input."""

import csv
import json
import signal
import subprocess
import sys

import pytest

from latent_moe.cli import main
from latent_moe.config import KIMI_K3, TINY
from latent_moe.lab.cost import tail_timings
from latent_moe.lab.microbench import sweep
from latent_moe.lab.microbench.sweep import choices
from latent_moe.lab.microbench.timing import MAX_SETS, MIN_SETS, sets_needed, summarise
from latent_moe.lab.recordings import load_manifest
from latent_moe.parallel import TensorParallel
from latent_moe.platform import Platform
from latent_moe.tail_variants.registry import TAILS

QUICK = ["--preset", "tiny", "--samples", "3"]
# Tails that take no float32, which QUICK asks for.
NARROW = {"fused", "early_weights", "one_launch"}


def run(capsys, *arguments):
    code = main(["tails", *arguments, "--json"])
    captured = capsys.readouterr()
    return code, json.loads(captured.out.strip().splitlines()[-1]), captured.err


def test_rows_checks_and_a_recording(capsys, tmp_path, monkeypatch):
    folder = tmp_path / "here"
    monkeypatch.setattr(sys, "argv", ["latent-moe", "tails", "--record", str(folder)])
    code, answer, _ = run(capsys, *QUICK, "--tp", "2", "--tokens", "1", "5", "--record", str(folder))
    assert code == 0
    assert answer["tp"] == 2
    assert answer["device"]
    timed = {(row["tail"], row["tokens"]) for row in answer["rows"]}
    assert timed == {(tail, t) for tail in set(TAILS) - NARROW for t in (1, 5)}
    for row in answer["rows"]:
        assert 0 < row["p10_us"] <= row["median_us"] <= row["p90_us"]
    skipped = {(item["tail"], item["tokens"]) for item in answer["skipped"]}
    assert skipped == {(tail, t) for tail in NARROW for t in (1, 5)}
    assert all("takes bfloat16 and float16" in item["reason"] for item in answer["skipped"])
    assert all(0 < check["max_rel_err"] <= 1e-5 and check["same_bits"] for check in answer["checks"])
    assert {one["tail"] for one in answer["auto"]} == {"column_parallel"}
    assert all(one["over_best_pct"] >= 0 for one in answer["auto"])
    _reads_back(folder, answer)


def _reads_back(folder, answer):
    manifest = load_manifest(folder)
    assert (manifest.kind, manifest.parameters["tp"], manifest.parameters["collectives"]) == (
        "measured",
        2,
        True,
    )
    # The command without the folders of the machine it ran on.
    assert manifest.command == "latent-moe tails --record here"
    rows = tail_timings.read(folder)
    assert {(row["tail"], row["tokens"], row["median_us"]) for row in rows} == {
        (row["tail"], row["tokens"], row["median_us"]) for row in answer["rows"]
    }
    with (folder / "tails.csv").open(newline="") as file:
        header = next(csv.reader(file))
    assert header[:7] == ["tail", "tokens", "tp", "mode", "median_us", "p10_us", "p90_us"]
    traces = sorted(folder.glob("trace_*"))
    assert {path.name for path in traces} <= set(manifest.files)
    assert len(traces) == len(TAILS) - len(NARROW)
    assert all(path.stat().st_size <= 500_000 for path in traces)


def test_the_shapes_of_eight_ranks_on_one_device(capsys):
    code, answer, _ = run(capsys, *QUICK, "--shapes-of", "8", "--tokens", "3", "16")
    assert (code, answer["tp"], answer["checks"]) == (0, 8, [])
    assert {row["tail"] for row in answer["rows"]} == set(TAILS) - NARROW
    assert "auto" not in answer


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tokens", "0"], "at least 1"),
        (["--samples", "0"], "at least 1"),
        (["--tails", "magic"], "unknown tail 'magic'"),
        (["--mode", "graph"], "needs a GPU"),
        (["--preset", "huge"], "unknown preset"),
        (["--tp", "3"], "does not divide"),
        (["--shapes-of", "3"], "does not divide"),
        (["--tokens", "x"], "invalid int"),
        (["--rounds", "0"], "at least 1"),
        (["--timeout", "inf"], "--timeout inf is not between"),
        (["--timeout", "0"], "--timeout 0 is not between"),
        (["--tp", "1", "--collectives", "vllm"], "one rank has no collectives"),
        (["--shapes-of", "2", "--collectives", "vllm"], "has no collectives"),
        (["--collectives", "magic"], "invalid choice"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(capsys, arguments, message):
    try:
        code = main(["tails", "--tokens", "1", "--preset", "tiny", *arguments])
    except SystemExit as end:
        code = end.code
    captured = capsys.readouterr()
    assert code == 2
    assert message in captured.err
    assert len(captured.err.strip().splitlines()) == 1
    assert captured.out == ""


def test_vllm_has_to_be_there_for_its_collectives(capsys, monkeypatch):
    bare = Platform("cpu", "Some CPU", 1, None, False, False, None, "2.13")
    monkeypatch.setattr("latent_moe.platform.describe", lambda: bare)
    assert main(["tails", "--tokens", "1", "--preset", "tiny", "--collectives", "vllm"]) == 2
    assert "vLLM, which is not installed" in capsys.readouterr().err


def test_samples_are_spread_over_the_rounds(monkeypatch):
    asked = []

    def stand_in(run, restore, sets, samples, *rest):
        asked.append(samples)
        return [float(len(asked))] * samples

    monkeypatch.setattr(sweep, "sample", stand_in)
    todo = sweep.Sweep(TINY, ("replicated", "column_parallel"), (1, 4), ("eager",), "float32", 7, rounds=3)
    found = sweep.run_sweep(TensorParallel.single(), todo)
    # Four rows, three passes over all of them, seven samples each: not one row's samples after the other's.
    assert asked == [3] * 4 + [2] * 4 + [2] * 4
    assert [row["median_us"] for row in found["rows"]] == [5.0, 6.0, 7.0, 8.0]
    assert len(found["checks"]) == 4
    assert sweep.shares(2, 5) == [1, 1]


def test_quantiles_are_those_of_the_samples():
    timing = summarise([float(x) for x in range(101)])
    assert (timing.median_us, timing.p10_us, timing.p90_us) == (50.0, 10.0, 90.0)
    assert summarise([3.0]).p90_us == 3.0


def test_sets_outgrow_the_cache():
    weight = 896 * 3584 * 2
    assert sets_needed(weight, True) * weight > 2 * 256 * 2**20
    assert sets_needed(10**12, True) == MIN_SETS
    assert sets_needed(1, True) == MAX_SETS


def test_how_far_auto_is_from_the_best(monkeypatch, tmp_path):
    monkeypatch.setenv("LATENT_MOE_PROFILES", str(tmp_path))
    machine = Platform("cuda", "Some Accelerator", 2, None, False, False, None, "2.11")
    rows = [
        {"tail": "column_parallel", "tokens": 4, "mode": "graph", "median_us": 30.0},
        {"tail": "overlap", "tokens": 4, "mode": "graph", "median_us": 24.0},
        {"tail": "pipelined:chunks=3", "tokens": 4, "mode": "graph", "median_us": 1.0},
    ]
    (one,) = choices(rows, KIMI_K3, 2, machine)
    assert (one["tail"], one["best"], one["over_best_pct"]) == ("column_parallel", "overlap", 25.0)
    assert choices(rows[1:], KIMI_K3, 2, machine) == []


def test_each_row_is_shown_as_it_is_done_and_refusals_once(capsys):
    _, answer, shown = run(
        capsys, *QUICK, "--tp", "2", "--tokens", "1", "5", "--tails", "replicated", "fused"
    )
    lines = shown.splitlines()
    assert [line.split()[:3] for line in lines if line.endswith(tuple("0123456789")) and "eager" in line] == [
        ["replicated", str(row["tokens"]), "eager"] for row in answer["rows"]
    ]
    [refused] = [line for line in lines if line.startswith("not timed")]
    assert "fused at T = 1, 5" in refused
    assert lines.index(refused) < lines.index(next(line for line in lines if line.startswith("round 1")))


def test_an_interrupted_recording_leaves_what_is_done_marked(tmp_path):
    folder = tmp_path / "cut short"
    words = [
        "tails",
        *QUICK[:2],
        "--samples",
        "2000000",
        "--rounds",
        "100000",
        "--tokens",
        "1",
        "--tails",
        "replicated",
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "latent_moe", *words, "--record", str(folder)],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    for line in process.stderr:
        if line.startswith("round 3 "):
            break
    process.send_signal(signal.SIGINT)
    _, rest = process.communicate(timeout=60)
    assert process.returncode == 130, rest
    manifest = load_manifest(folder)
    assert manifest.parameters["complete"] is False
    assert manifest.notes.startswith("INTERRUPTED in round ")
    [row] = tail_timings.read(folder)
    assert (row["tail"], row["tokens"]) == ("replicated", 1)
