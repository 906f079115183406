"""What notebook 05 runs on this kind of machine, and what it shows where a cell is too short for that."""

import inspect

import pytest

from latent_moe.lab.bench import bench
from latent_moe.lab.bench.recipe import load_recipe
from latent_moe.lab.bench.server import ServerError
from latent_moe.lab.notebooks import bench_here
from latent_moe.lab.recordings import profile_path
from latent_moe.lab.report.execute import execute


@pytest.fixture
def ran(monkeypatch, tmp_path):
    """The recipes that were run instead of real servers; vLLM imports."""
    done = []
    monkeypatch.setattr(bench, "run", lambda recipe, out: done.append((recipe, out)) or out)
    monkeypatch.setattr(bench_here, "vllm_imports", lambda: True)
    return done


def test_the_limit_is_the_tours():
    assert inspect.signature(execute).parameters["timeout_s"].default == bench_here.CELL_LIMIT_S


def test_every_kind_of_machine_has_a_recipe():
    assert set(bench_here.RECIPES) == {"cpu", "cuda", "rocm"}
    assert all(load_recipe(name).name == name for name in bench_here.RECIPES.values())


def test_a_cpu_measures(ran, tmp_path):
    assert bench_here.measure(bench_here.RECIPES["cpu"], tmp_path) == tmp_path
    assert ran == [("cpu_quick", tmp_path)]


@pytest.mark.parametrize("kind", ["cuda", "rocm"])
def test_a_gpu_shows_the_recorded_run_and_the_command(ran, kind, tmp_path, capsys):
    assert bench_here.measure(bench_here.RECIPES[kind], tmp_path) == profile_path(bench_here.RECORDED)
    assert ran == []
    said = capsys.readouterr().out
    assert f"`latent-moe bench {bench_here.RECIPES[kind]} --out DIR`" in said
    assert "8 minutes of a cell" in said
    assert bench_here.RECORDED in said


def test_a_recipe_of_ones_own_is_not_started_in_a_cell(ran, tmp_path, capsys):
    bench_here.measure("mine.toml", tmp_path)
    assert ran == []
    assert "bench mine.toml" in capsys.readouterr().out


def test_without_vllm_that_is_said(ran, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(bench_here, "vllm_imports", lambda: False)
    assert bench_here.measure("cpu_quick", tmp_path) == profile_path(bench_here.RECORDED)
    assert "vLLM does not import here" in capsys.readouterr().out


def test_a_failed_run_is_never_replaced_by_the_recorded_one(ran, monkeypatch, tmp_path):
    def fail(*_):
        raise ServerError("server replicated died", "")

    monkeypatch.setattr(bench, "run", fail)
    with pytest.raises(ServerError):
        bench_here.measure("cpu_quick", tmp_path)
