"""The accuracy step of a whole run: lm_eval against each arm's server, once, and its result in the table."""

import json
import os
import sys
from pathlib import Path

from bench_driver import bench, one_line, write_recipe
from processes import wait_gone

from latent_moe.cli import main

PROGRAM = Path(__file__).parent / "lm_eval_stand_in.py"
SECRET = "hf_secret0123456789"


def accuracy(**extra: str) -> str:
    """The table of a recipe, with lm_eval's arguments as the pull request gives them."""
    more = "".join(f",{name}={value}" for name, value in extra.items())
    words = [sys.executable, str(PROGRAM), "--model", "local-completions", "--model_args"]
    words += [f"model=tiny,base_url={{url}}/v1/completions,num_concurrent=2,tokenized_requests=False{more}"]
    words += ["--tasks", "tiny_words", "--num_fewshot", "2", "--seed", "42"]
    return f"[accuracy]\ncommand = {json.dumps(words)}"


def test_each_arm_is_scored_once_and_the_table_compares_them(tmp_path, capsys):
    recipe, out = write_recipe(tmp_path, more=accuracy(hf_token=SECRET)), tmp_path / "out"
    mark = f"accuracy-{os.getpid()}"
    assert bench(recipe, out, mark=mark).returncode == 0
    files = {path: path.read_bytes() for path in (out / "accuracy").rglob("*.json")}
    assert sorted(path.relative_to(out).parts[1] for path in files) == ["one", "two"]
    assert all(SECRET.encode() not in path.read_bytes() for path in out.rglob("*") if path.is_file())
    assert wait_gone(mark, 5) == []
    assert bench(recipe, out, "--resume", "--pairs", "2", mark=mark).returncode == 0
    assert {path: path.read_bytes() for path in (out / "accuracy").rglob("*.json")} == files
    assert main(["table", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])["accuracy"]
    assert {item["filter"] for item in found} == {"strict-match", "flexible-extract"}
    assert {(item["task"], item["verdict"]) for item in found} == {("tiny_words", "not_different")}


def test_an_accuracy_run_that_fails_keeps_the_runs_and_is_taken_up_again(tmp_path):
    recipe, out = write_recipe(tmp_path, more=accuracy()), tmp_path / "out"
    mark = f"fails-{os.getpid()}"
    done = bench(recipe, out, mark=mark, LM_EVAL_STAND_IN_FAILS="1")
    assert done.returncode == 1
    assert "the accuracy run of one failed (exit code 1)" in one_line(done)
    assert "400 Bad Request" in done.stderr.split("last lines of the log:")[1]
    assert len(list(out.glob("runs/one_*.json"))) == 2
    assert not (out / "state" / "accuracy_one.done").exists()
    assert wait_gone(mark, 5) == []
    assert bench(recipe, out, "--resume", mark=mark).returncode == 0
    assert (out / "state" / "accuracy_one.done").exists()
    assert len(list((out / "accuracy").rglob("results_*.json"))) == 2
