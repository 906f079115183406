"""A client that fails, a server that dies: one line, the log's last lines, no process, no half-written result."""

import json
import os

import pytest
from bench_driver import bench, console_environment, one_line, result_files, write_recipe
from processes import wait_gone

from latent_moe.lab.bench.server import SupervisedProcess


def nothing_left(out, mark) -> None:
    assert wait_gone(mark, 5) == []
    assert list(out.rglob("*.part")) == []
    assert result_files(out) == {}


def console(tmp_path, **parts):
    """The same recipe with `vllm serve` and `vllm bench serve`, each run of the client a process of its own."""
    recipe = write_recipe(tmp_path, **parts)
    recipe.write_text(recipe.read_text().replace("[server]\n", '[server]\nlauncher = "console"\n'))
    return recipe, console_environment(tmp_path)


@pytest.fixture(params=["shared client", "vllm bench serve"])
def setting(request, tmp_path):
    """(recipe, environment) for both ways the client is started."""
    return console(tmp_path) if request.param == "vllm bench serve" else (write_recipe(tmp_path), {})


@pytest.mark.parametrize(
    ("fault", "line", "log"),
    [
        ("exit", "the client failed in c2 (exit code 5)", "cannot reach the server"),
        ("no result", "c2", "client:"),
        ("half a result", "c2", "client:"),
    ],
)
def test_a_client_that_fails(tmp_path, setting, fault, line, log):
    recipe, env = setting
    mark = f"client-{os.getpid()}-{fault}"
    done = bench(recipe, tmp_path / "out", mark=mark, STAND_IN_CLIENT=fault, **env)
    assert done.returncode == 1
    assert line in one_line(done)
    assert log in done.stderr.split("last lines of the log:")[1]
    nothing_left(tmp_path / "out", mark)


@pytest.mark.parametrize(
    ("fault", "line", "log"),
    [
        ("loading", "server one died before it was ready (exit code 3)", "model-00001.safetensors"),
        ("no plugin", "server one says nothing about LATENT_MOE_TAIL=replicated", "environment:"),
        (
            "refused",
            "server one: tail replicated refused, layers end as vLLM ends them: no GPU",
            "environment:",
        ),
        ("under load", "server one died while one was measured at concurrency 2 (exit code 9)", "HIP out of"),
        ("slow death", "server one died while one was measured at concurrency 2 (exit code 9)", "HIP out of"),
    ],
)
def test_a_server_that_dies(tmp_path, setting, fault, line, log):
    recipe, env = setting
    recipe.write_text(recipe.read_text().replace('"replicated"', f'"replicated", STAND_IN_FAULT = "{fault}"'))
    mark = f"server-{os.getpid()}-{fault}"
    done = bench(recipe, tmp_path / "out", mark=mark, **env)
    assert done.returncode == 1
    assert line in one_line(done)
    assert log in done.stderr.split("last lines of the log:")[1]
    nothing_left(tmp_path / "out", mark)


def test_a_server_that_dies_while_it_answers_greedily(tmp_path):
    recipe = write_recipe(
        tmp_path,
        one_env=', STAND_IN_FAULT = "answering"',
        more="[parity]\ncount = 1\nlength = 4\nmax_tokens = 2",
    )
    mark = f"answering-{os.getpid()}"
    done = bench(recipe, tmp_path / "out", mark=mark)
    assert done.returncode == 1
    assert "server one died while one answered greedily (exit code 9)" in one_line(done)
    assert "HIP out of" in done.stderr.split("last lines of the log:")[1]
    assert sorted(result_files(tmp_path / "out")) == ["one_pair1_c2.json", "one_pair1_c3.json"]
    assert wait_gone(mark, 5) == []


def test_a_second_arm_that_dies_leaves_the_first_ones_runs_whole(tmp_path):
    recipe = write_recipe(tmp_path, two_env=', STAND_IN_FAULT = "loading"')
    mark = f"second-{os.getpid()}"
    done = bench(recipe, tmp_path / "out", mark=mark)
    assert done.returncode == 1
    assert "server two died" in one_line(done)
    assert sorted(result_files(tmp_path / "out")) == ["one_pair1_c2.json", "one_pair1_c3.json"]
    assert wait_gone(mark, 5) == []


def test_a_program_that_is_not_there_is_known_before_anything_starts(tmp_path):
    accuracy = write_recipe(tmp_path, more='[accuracy]\ncommand = ["lm_eval_is_not_here"]')
    done = bench(accuracy, tmp_path / "out", mark="unused")
    assert done.returncode == 2
    assert "lm_eval_is_not_here, which the accuracy step needs" in one_line(done)
    accuracy.write_text(accuracy.read_text().replace("[server]", '[server]\nlauncher = "console"'))
    done = bench(accuracy, tmp_path / "out", mark="unused", PATH="/usr/bin:/bin")
    assert done.returncode == 2
    assert "vllm, which the server of one needs" in one_line(done)
    assert not (tmp_path / "out").exists()


def test_a_program_that_cannot_be_started_is_said_in_the_log(tmp_path):
    process = SupervisedProcess(["/nowhere/vllm", "serve"], {}, tmp_path / "server.log")
    assert process.wait(20) == 127
    assert process.tail().endswith("/nowhere/vllm could not be started: No such file or directory")


def test_an_out_that_cannot_hold_results_is_one_line(tmp_path):
    recipe = write_recipe(tmp_path)
    file = tmp_path / "file"
    file.touch()
    for out in (file, file / "below"):
        done = bench(recipe, out, mark="unused")
        assert done.returncode == 2
        assert "cannot hold results" in one_line(done)


def test_the_commands_output_is_one_json_object_when_all_went_well(tmp_path):
    done = bench(write_recipe(tmp_path), tmp_path / "out", "--json", mark=f"well-{os.getpid()}")
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout.splitlines()[-1])["runs"]) == 4
    assert wait_gone(f"well-{os.getpid()}", 5) == []
