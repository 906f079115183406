"""Recipes and folders of other benchmarks' faults, as they were filed: the right answer for each."""

import json
import os
import shutil
import subprocess
import time

import pytest
from bench_driver import bench, console_environment, environment, one_line, words
from processes import wait_gone


@pytest.fixture
def case(shared, tmp_path):
    """Copies a case's folder here."""

    def copy(name: str):
        (folder,) = (shared / "cases" / "results").glob(f"{name}-*.d")
        return shutil.copytree(folder, tmp_path / "case")

    return copy


def test_37_an_empty_run_of_an_earlier_version_is_measured_again(case, tmp_path):
    folder, mark = case("37"), f"case37-{os.getpid()}"
    before = {path.name: path.read_bytes() for path in (folder / "out" / "runs").iterdir()}
    assert before["before_pair1_c2.json"] == b""
    env = console_environment(tmp_path)
    done = bench(folder / "base.toml", folder / "out", "--resume", "--pairs", "2", mark=mark, **env)
    assert done.returncode == 0, done.stderr
    after = {path.name: path.read_bytes() for path in (folder / "out" / "runs").iterdir()}
    assert json.loads(after["before_pair1_c2.json"])["completed"] == 8
    assert {name for name in before if before[name] == after[name]} == {
        name for name in before if "pair2" in name
    }
    assert wait_gone(mark, 5) == []


def test_36_a_folder_of_one_version_is_not_resumed_with_another(case, tmp_path):
    folder, mark = case("36"), f"case36-{os.getpid()}"
    recipe = case_recipe(folder)
    env = console_environment(tmp_path)
    done = bench(
        recipe, folder / "out", "--resume", "--pairs", "3", mark=mark, STAND_IN_VERSION="0.33.0", **env
    )
    assert done.returncode == 1
    assert "is version 0.33.0, its runs in" in one_line(done)
    assert wait_gone(mark, 5) == []


def case_recipe(folder):
    """Case 36 comes without the recipe that its manifest describes: case 37's."""
    text = """name = "stub"
title = "stub"
pairs = 2
[model]
name = "moonshotai/Kimi-K3"
[server]
launcher = "console"
args = ["--tensor-parallel-size", "8"]
startup_timeout_s = 20
[client]
isl = 64
osl = 8
concurrencies = [2, 4]
timeout_s = 20
[arms.before]
role = "baseline"
[arms.after]
role = "candidate"
env = { FAKE_SPEED = "1.05" }
"""
    (folder / "base.toml").write_text(text)
    return folder / "base.toml"


def test_39_the_second_of_two_at_once_is_refused(case, tmp_path):
    folder, mark = case("39"), f"case39-{os.getpid()}"
    out, env = folder / "out", console_environment(tmp_path)
    first = subprocess.Popen(
        words(folder / "base.toml", out), env=environment(mark, **env), stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 60
    while not list(out.glob("runs/*.json")) and time.monotonic() < deadline:
        time.sleep(0.05)
    done = bench(folder / "base.toml", out, "--resume", mark="second", **env)
    assert done.returncode == 2
    assert f"a bench is at work in {out} (process {first.pid})" in one_line(done)
    assert first.wait(120) == 0
    assert wait_gone(mark, 5) == []


def test_an_earlier_versions_folder_is_refused_by_the_field_that_its_manifest_shows(case, tmp_path):
    folder = case("36")
    recipe = case_recipe(folder)
    recipe.write_text(recipe.read_text().replace("concurrencies = [2, 4]", "concurrencies = [2]"))
    done = bench(recipe, folder / "out", "--resume", mark="unused", **console_environment(tmp_path))
    assert done.returncode == 2
    assert "another recipe: client.concurrencies was [2, 4], not [2]" in one_line(done)
    recipe.write_text(recipe.read_text().replace('name = "stub"', 'name = "other"', 1))
    done = bench(recipe, folder / "out", "--resume", mark="unused", **console_environment(tmp_path))
    assert done.returncode == 2
    assert "another recipe: stub, not other" in one_line(done)
