"""What `bench` says about the pairs it takes: only from runs that say something about the spread."""

import json

import pytest
from result_builders import bench_run, write_bench

from latent_moe.errors import InputError
from latent_moe.lab.bench import bench
from latent_moe.lab.bench.recipe import load_recipe
from latent_moe.lab.bench.resolve import resolve
from latent_moe.lab.results.comparison import recommend_from_runs

FACTORS = (1.02, 0.99, 1.05)


def session(factors=FACTORS, **changes) -> list[dict]:
    pairs = enumerate(factors, start=1)
    return [
        run
        for pair, factor in pairs
        for run in (bench_run("baseline", pair), bench_run("candidate", pair, factor, **changes))
    ]


def advice(folder, runs):
    (found,) = recommend_from_runs(write_bench(folder, runs)).values()
    return found


def test_runs_that_spread_get_a_number(tmp_path):
    found = advice(tmp_path, session())
    assert found.pairs >= 10
    assert found.sd_pct == pytest.approx(2.9, abs=0.2)


def test_one_pair_says_nothing(tmp_path):
    found = advice(tmp_path, session((1.02,)))
    assert found.pairs is None
    assert "one pair" in found.note


def test_pairs_without_any_spread_are_no_measured_spread(tmp_path):
    found = advice(tmp_path, session((1.02, 1.02, 1.02)))
    assert found.pairs is None
    assert found.sd_pct is None
    assert "exactly the same" in found.note


def test_runs_that_a_guard_refuses_get_the_reason_and_no_number(tmp_path):
    runs = session()
    runs[3] |= {"completed": 20, "failed": 12}
    found = advice(tmp_path, runs)
    assert found.pairs is None
    assert "not comparable (12 of 32 requests failed" in found.note
    runs = session(total_output_tokens=4096)
    assert "different tokens per request" in advice(tmp_path / "tokens", runs).note


def test_the_same_run_twice_is_one_run(tmp_path):
    runs = session((1.02, 0.99))
    folder = write_bench(tmp_path, runs)
    for run in session((1.02, 0.99)):
        name = f"copy_of_{run['latent_moe']['arm']}_{run['latent_moe']['pair']}.json"
        (folder / "runs" / name).write_text(json.dumps(run))
    (found,) = recommend_from_runs(folder).values()
    assert found.note.startswith("2 pairs spread")


class Told(list):
    def __call__(self, text):
        self.append(text)


@pytest.fixture
def recipe(tmp_path, repository):
    """cpu_demo with three pairs and the arms that the written results have."""
    text = (repository / "latent_moe/lab/bench/recipes/cpu_demo.toml").read_text()
    text = text.replace("pairs = 4", "pairs = 3").replace("[arms.replicated]", "[arms.baseline]")
    path = tmp_path / "three.toml"
    path.write_text(text.replace("[arms.column_parallel]", "[arms.candidate]"))
    return load_recipe(path)


def said(recipe, folder, pair) -> Told:
    told = Told()
    plan = resolve(recipe, folder)
    (entry,) = [entry for entry in plan.sessions if (entry.arm, entry.pair) == ("candidate", pair)]
    bench.recommend(plan, entry, told)
    return told


def test_bench_says_it_after_whole_pairs_from_the_second_on(tmp_path, recipe):
    folder = write_bench(tmp_path / "out", session())
    assert said(recipe, folder, 1) == []
    assert said(recipe, folder, 3)[0].startswith("concurrency 4: 3 pairs spread by 2.9 %")
    (folder / "runs" / "candidate_pair3_c4.json").unlink()
    assert said(recipe, folder, 3) == []


def test_advice_never_ends_a_benchmark(tmp_path, recipe):
    folder = write_bench(tmp_path / "out", session())
    (folder / "runs" / "baseline_pair1_c4.json").write_text("{broken")
    with pytest.raises(InputError):
        recommend_from_runs(folder)
    (told,) = said(recipe, folder, 3)
    assert told.startswith("how many pairs it takes cannot be said:")
