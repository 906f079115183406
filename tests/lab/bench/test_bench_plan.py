"""The plan that --dry-run prints is the plan that runs, and it stands before anything starts."""

import ast
import inspect
import json
import os
import shlex
from pathlib import Path

import pytest
from bench_driver import bench, result_files, write_recipe

from latent_moe.lab.bench import session
from latent_moe.lab.bench.machine import free_ports, reserved_ports
from latent_moe.lab.bench.recipe import load_recipe, recipe_names
from latent_moe.lab.bench.resolve import resolve

PARITY = "[parity]\ncount = 2\nlength = 4\nmax_tokens = 3"


def shown(recipe, out, *options: str, mark: str) -> dict:
    """The dry run as JSON."""
    done = bench(recipe, out, "--dry-run", "--json", *options, mark=mark)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def arguments(command: dict) -> list[str]:
    """What a server or client is given, without the words that find its program: `VARIABLE=x python -m MODULE`."""
    words = shlex.split(f"{command['command']} {command['added']}")
    return words[words.index("-m") + 2 :]


@pytest.mark.parametrize("standby", ["", "standby = true\n"])
def test_servers_and_clients_get_what_the_dry_run_printed_in_that_order(tmp_path, standby):
    recipe, out = write_recipe(tmp_path, pairs=2, more=PARITY), tmp_path / "out"
    recipe.write_text(recipe.read_text().replace("[server]\n", f"[server]\n{standby}"))
    plan, log = shown(recipe, out, mark="shown"), tmp_path / "received"
    done = bench(recipe, out, mark=f"plan-{os.getpid()}", STAND_IN_RECEIVED=str(log))
    assert done.returncode == 0, done.stderr
    received = [json.loads(line) for line in log.read_text().splitlines()]
    assert [words for words, _, _ in received] == [arguments(command) for command in plan["commands"]]
    assert [kind["kind"] for kind in plan["commands"][:5]] == [
        "server",
        "warmup",
        "client",
        "warmup",
        "client",
    ]
    tails = {"one": "replicated", "two": "column_parallel"}
    servers = [item for item in zip(received, plan["commands"], strict=True) if item[1]["kind"] == "server"]
    assert [tail for (_, tail, _), _ in servers] == [tails[command["arm"]] for _, command in servers]
    assert {Path(folder) for _, _, folder in received} == {out}
    ours = [json.loads(text)["latent_moe"] for text in result_files(out).values()]
    orders = {(run["arm"], run["pair"]): run["order"] for run in ours}
    assert orders == {(each["arm"], each["pair"]): each["order"] for each in plan["sessions"]}
    assert {run["seed"] for run in ours} <= {seed for each in plan["sessions"] for seed in each["seeds"]}
    assert {Path(each["folder"]) for each in plan["sessions"]} == set((out / "logs").iterdir())
    assert {each["answers"] for each in plan["sessions"]} - {None} == set(
        map(str, (out / "parity").iterdir())
    )


def test_a_resumed_dry_run_prints_what_is_left_alone(tmp_path):
    recipe, out = write_recipe(tmp_path, pairs=2), tmp_path / "out"
    assert bench(recipe, out, mark=f"left-{os.getpid()}").returncode == 0
    assert shown(recipe, out, "--resume", mark="shown")["sessions"] == []
    (out / "runs" / "one_pair2_c3.json").unlink()
    left = shown(recipe, out, "--resume", mark="shown")["sessions"]
    assert [(each["arm"], each["pair"], each["order"]) for each in left] == [("two", 2, 2), ("one", 2, 3)]
    assert not any(Path(each["folder"]).exists() for each in left), "a second start has a folder of its own"
    assert len(result_files(out)) == 7, "a dry run moves nothing"


@pytest.mark.parametrize("name", recipe_names())
def test_every_shipped_recipe_resolves_whole(name):
    plan = resolve(load_recipe(name).with_pairs(2), "OUT")
    answer = plan.as_json()
    files = [run.run_file for each in plan.sessions for run in each.measured]
    assert len(files) == len(set(files))
    assert len({each.folder for each in plan.sessions}) == len(plan.sessions)
    assert len(answer["commands"]) == sum(1 + len(each.runs) + bool(each.accuracy) for each in plan.sessions)
    assert answer["estimate_s"] >= 60 * len(plan.sessions)
    text = plan.text()
    assert "about " in text
    for each in plan.sessions:
        assert f"session {each.order}, pair {each.pair}: {each.arm} on port {each.port}" in text
        assert json.dumps([run.command.added for run in each.runs]).count("--seed") == len(each.runs)


def test_ports_that_one_bench_reserves_are_no_others():
    with reserved_ports(2) as first, reserved_ports(2) as second:
        assert len({*first, *second}) == 4
        assert free_ports(1)[0] not in {*first, *second}


def test_sessions_never_see_a_recipe(repository):
    parameters = [
        argument.arg
        for path in (repository / "latent_moe").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
        for argument in (*node.args.args, *node.args.kwonlyargs)
        if argument.arg == "recipe"
    ]
    assert len(parameters) <= 12
    assert "recipe" not in inspect.getsource(session)
