"""A wheel built from the checkout and installed alone, with the base dependencies, away from the checkout."""

import json
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# What the extras bring: a base verb that imports one of these asks for more than it declares.
ABSENT = ("torch", "scipy", "plotly", "jupyterlab", "nbformat", "vllm", "triton", "safetensors", "selenium")


@pytest.fixture(scope="module")
def wheel(repository, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    checkout = tmp_path_factory.mktemp("sources") / "checkout"
    # A clone holds what git holds: nothing that lies about in the working tree can slip into the wheel.
    subprocess.run(["git", "clone", "-q", repository, checkout], check=True)
    words = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", out, "."]
    subprocess.run(words, check=True, cwd=checkout)
    return next(out.glob("latent_moe-*.whl"))


@pytest.fixture(scope="module")
def command(wheel, tmp_path_factory):
    """Runs `latent-moe` from the new environment in an empty folder, with no variable that leads to the checkout."""
    place = tmp_path_factory.mktemp("base")
    venv.create(place / "env", with_pip=True)
    subprocess.run([place / "env/bin/python", "-m", "pip", "install", "-q", wheel], check=True)
    elsewhere = place / "elsewhere"
    elsewhere.mkdir()
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}

    def run(*words) -> subprocess.CompletedProcess:
        program = [place / "env/bin/latent-moe", *map(str, words)]
        return subprocess.run(program, cwd=elsewhere, env=kept, capture_output=True, text=True, timeout=120)

    run.python = place / "env/bin/python"
    return run


def test_wheel_holds_tables_and_manifests_and_no_study_or_trace(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert "latent_moe/_profiles/mi355x_pr51253/table.csv" in names
    assert "latent_moe/_profiles/h200x2_tails_vllm/manifest.json" in names
    assert not [
        name
        for name in names
        if "studies" in name or name.endswith((".gz", ".db")) or name.startswith("tests")
    ]
    assert wheel.stat().st_size < 1.5e6


def test_base_install_brings_no_extra(command):
    code = f"from importlib.util import find_spec; print([n for n in {ABSENT!r} if find_spec(n)])"
    answer = subprocess.run([command.python, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


@pytest.mark.parametrize("words", [("predict", "--hardware", "mi355x"), ("--help",)])
def test_verbs_without_a_file(command, words):
    answer = command(*words)
    assert answer.returncode == 0, answer.stderr


def test_kernels_and_compare(command, repository):
    traces = [
        repository / "profiles" / "synthetic_k3_tail" / tail for tail in ("replicated", "column_parallel")
    ]
    answer = command("kernels", traces[0], "--json")
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout.splitlines()[-1])["calls"] > 0
    answer = command("compare", *traces, "--json")
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout.splitlines()[-1])["verdict"] == "faster"


def test_report_with_savings_from_packaged_recordings(command, repository):
    trace = repository / "profiles" / "h200x2_tails_vllm" / "trace_replicated.json.gz"
    answer = command("report", trace, "--tp", "2", "--json")
    assert answer.returncode == 0, answer.stderr
    tail = json.loads(answer.stdout.splitlines()[-1])["tail"]
    assert (tail["form"], tail["savings"]["column_parallel"]["source"]) == ("replicated", "h200x2_tails_vllm")


def test_table(command, repository):
    answer = command("table", repository / "profiles" / "cpu_demo", "--json")
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout.splitlines()[-1])["rows"]


def test_every_recipe_shows_its_plan(command, repository):
    recipes = sorted(path.stem for path in (repository / "latent_moe/lab/bench/recipes").glob("*.toml"))
    assert recipes
    for recipe in recipes:
        answer = command("bench", recipe, "--dry-run")
        assert answer.returncode == 0, f"{recipe}: {answer.stderr}"
