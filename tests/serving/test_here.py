"""What notebook 05 runs on this kind of machine, and what it shows where a cell is too short for that."""

import inspect

import pytest

from latent_moe.profiles import profile_path
from latent_moe.serving import bench, here
from latent_moe.serving.recipe import load_recipe
from latent_moe.serving.server import ServerError
from latent_moe.tour.execute import execute


@pytest.fixture
def ran(monkeypatch, tmp_path):
    """The recipes that were run instead of real servers; vLLM imports."""
    done = []
    monkeypatch.setattr(bench, "run", lambda recipe, out: done.append((recipe, out)) or out)
    monkeypatch.setattr(here, "vllm_imports", lambda: True)
    return done


def test_the_limit_is_the_tours():
    assert inspect.signature(execute).parameters["timeout_s"].default == here.CELL_LIMIT_S


def test_every_kind_of_machine_has_a_recipe():
    assert set(here.RECIPES) == {"cpu", "cuda", "rocm"}
    assert all(load_recipe(name).name == name for name in here.RECIPES.values())


def test_a_cpu_measures(ran, tmp_path):
    assert here.measure(here.RECIPES["cpu"], tmp_path) == tmp_path
    assert ran == [("cpu_quick", tmp_path)]


@pytest.mark.parametrize("kind", ["cuda", "rocm"])
def test_a_gpu_shows_the_recorded_run_and_the_command(ran, kind, tmp_path, capsys):
    assert here.measure(here.RECIPES[kind], tmp_path) == profile_path(here.RECORDED)
    assert ran == []
    said = capsys.readouterr().out
    assert f"`latent-moe bench {here.RECIPES[kind]} --out DIR`" in said
    assert "8 minutes of a cell" in said
    assert here.RECORDED in said


def test_a_recipe_of_ones_own_is_not_started_in_a_cell(ran, tmp_path, capsys):
    here.measure("mine.toml", tmp_path)
    assert ran == []
    assert "bench mine.toml" in capsys.readouterr().out


def test_without_vllm_that_is_said(ran, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(here, "vllm_imports", lambda: False)
    assert here.measure("cpu_quick", tmp_path) == profile_path(here.RECORDED)
    assert "vLLM does not import here" in capsys.readouterr().out


def test_a_failed_run_is_never_replaced_by_the_recorded_one(ran, monkeypatch, tmp_path):
    def fail(*_):
        raise ServerError("server replicated died", "")

    monkeypatch.setattr(bench, "run", fail)
    with pytest.raises(ServerError):
        here.measure("cpu_quick", tmp_path)
