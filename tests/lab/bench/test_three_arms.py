"""A third arm: each candidate against the one baseline, and no arm favoured by the order of sessions."""

import csv
import json
import os
from collections import Counter
from itertools import pairwise

import msgspec
import pytest
from bench_driver import bench, result_files, write_recipe
from result_builders import bench_run, write_bench

from latent_moe.cli import main
from latent_moe.errors import InputError
from latent_moe.lab.bench.recipe import load_recipe
from latent_moe.lab.bench.resolve import resolve
from latent_moe.lab.results import METRICS, read_results
from latent_moe.lab.results.comparison import compare, compare_each


def rounds(recipe, pairs: int) -> list[list[str]]:
    sessions = resolve(msgspec.structs.replace(recipe, pairs=pairs), "OUT").sessions
    assert [session.order for session in sessions] == list(range(len(sessions)))
    return [[each.arm for each in sessions if each.pair == pair] for pair in range(1, pairs + 1)]


def test_the_recipe_is_gpu_pair_with_one_more_arm():
    three, two = load_recipe("gpu_pair_auto"), load_recipe("gpu_pair")
    assert three.with_role("candidate") == ["column_parallel", "auto"]
    assert three.arms["auto"].env == {"LATENT_MOE_TAIL": "auto"}
    fewer = {name: arm for name, arm in three.arms.items() if name != "auto"}
    same = msgspec.structs.replace(three, name=two.name, title=two.title, notes=two.notes, arms=fewer)
    assert same == two
    listed = resolve(three, "OUT").as_json()["commands"]
    servers = [item["command"] for item in listed if item["kind"] == "server" and item["pair"] == 1]
    assert ["LATENT_MOE_TAIL=auto" in line for line in servers] == [False, False, True]


def test_in_three_rounds_each_arm_stands_once_in_every_place():
    found = rounds(load_recipe("gpu_pair_auto"), 3)
    for place in range(3):
        assert len({order[place] for order in found}) == 3


def test_in_six_rounds_each_arm_follows_each_other_one_equally_often():
    found = rounds(load_recipe("gpu_pair_auto"), 6)
    assert set(Counter(follows for order in found for follows in pairwise(order)).values()) == {2}
    assert set(Counter((place, arm) for order in found for place, arm in enumerate(order)).values()) == {2}


def test_two_arms_keep_their_order():
    a, b = "replicated", "column_parallel"
    assert rounds(load_recipe("gpu_pair"), 4) == [[a, b], [b, a], [a, b], [b, a]]


@pytest.fixture
def folder(tmp_path):
    """Three rounds of a baseline, a candidate 5 % faster and one 5 % slower."""
    runs = []
    for pair in (1, 2, 3):
        runs += [bench_run("baseline", pair), bench_run("candidate", pair, 1.05 + pair / 310)]
        ours = {"role": "candidate", "boot": f"t{pair}", "started": f"2026-03-01T13:{pair:02d}:00+00:00"}
        ours["order"] = 100 + pair
        runs.append(bench_run("third", pair, 0.95 + pair / 290, ours=ours))
    return write_bench(tmp_path / "three", runs)


def test_each_candidate_has_its_own_table(folder):
    first, second = compare_each(read_results([folder]))
    assert [(table.baseline, table.candidate) for table in (first, second)] == [
        ("baseline", "candidate"),
        ("baseline", "third"),
    ]
    assert {row.verdict for row in first.rows} == {"improved"}
    assert {row.verdict for row in second.rows} == {"regressed"}
    assert first.rows == compare(read_results([folder]), candidate="candidate").rows
    assert [warning.code for warning in first.warnings] == ["several_candidates"]


def test_names_choose_as_before(folder):
    (table,) = compare_each(read_results([folder]), candidate="third")
    assert (table.baseline, table.candidate, table.warnings) == ("baseline", "third", [])
    (table,) = compare_each(read_results([folder]), baseline="third", candidate="candidate")
    assert (table.baseline, table.candidate) == ("third", "candidate")
    with pytest.raises(InputError, match="unknown arm 'fourth'"):
        compare_each(read_results([folder]), candidate="fourth")


def run(capsys, *argv) -> tuple[int, str]:
    return main(["table", *map(str, argv)]), capsys.readouterr().out


def test_the_verb_shows_both(folder, capsys):
    code, text = run(capsys, folder)
    assert code == 0
    assert "baseline (baseline) against candidate (candidate)" in text
    assert "baseline (baseline) against third (candidate)" in text
    code, text = run(capsys, folder, "--json")
    answer = json.loads(text)
    assert (answer["candidates"], answer["candidate"]) == (["candidate", "third"], "candidate")
    assert Counter(row["candidate_arm"] for row in answer["rows"]) == {
        "candidate": len(METRICS),
        "third": len(METRICS),
    }
    assert [warning["code"] for warning in answer["warnings"]] == ["several_candidates"]
    _, text = run(capsys, folder, "--format", "csv")
    rows = list(csv.DictReader(text.splitlines()))
    assert {row["candidate_arm"]: row["verdict"] for row in rows} == {
        "candidate": "improved",
        "third": "regressed",
    }


def test_one_candidate_that_cannot_be_compared_is_said_and_makes_the_answer_no(folder, capsys):
    path = folder / "runs" / "third_pair2_c4.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"completed": 30, "failed": 2}))
    code, text = run(capsys, folder, "--json")
    verdicts = {(row["candidate_arm"], row["verdict"]) for row in json.loads(text)["rows"]}
    assert code == 1
    assert verdicts == {("candidate", "improved"), ("third", "not_comparable")}


def test_bench_measures_three_arms_and_advises_on_each(tmp_path, capsys):
    recipe = write_recipe(tmp_path, pairs=2)
    with recipe.open("a") as file:
        file.write('[arms.three]\nrole = "candidate"\nenv = { LATENT_MOE_TAIL = "auto" }\n')
    out, mark = tmp_path / "out", f"three-{os.getpid()}"
    done = bench(recipe, out, mark=mark)
    assert done.returncode == 0, done.stderr
    assert len(result_files(out)) == 2 * 3 * 2
    orders = {name: json.loads(text)["latent_moe"]["order"] for name, text in result_files(out).items()}
    assert [orders[f"{arm}_pair2_c2.json"] for arm in ("two", "three", "one")] == [3, 4, 5]
    for name in ("two", "three"):
        assert f"] {name}, concurrency 2: 2 pairs" in done.stderr
    code, text = run(capsys, out, "--json")
    # In the recipe's order, not the alphabet's.
    assert json.loads(text)["candidates"] == ["two", "three"]
    assert code == 0


@pytest.mark.parametrize("roles", [("candidate", "candidate"), ("baseline", "baseline"), ("baseline",)])
def test_there_is_one_baseline_and_at_least_one_candidate(tmp_path, roles):
    text = write_recipe(tmp_path).read_text()
    head = text[: text.index("[arms.one]")]
    arms = "".join(f'[arms.a{number}]\nrole = "{role}"\n' for number, role in enumerate(roles))
    (tmp_path / "roles.toml").write_text(head + arms)
    with pytest.raises(InputError, match="exactly one arm must be the baseline"):
        load_recipe(tmp_path / "roles.toml")
