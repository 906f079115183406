"""What importing the core pulls in, and what its code asks of Python."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import latent_moe

PACKAGE = Path(latent_moe.__file__).parent
CORE = (
    "config",
    "parallel",
    "platform",
    "ranks",
    "weights",
    "tail_variants",
    "tails",
    "runner",
    "layer",
    "verify",
)
HEAVY = ("vllm", "plotly", "jupyter", "jupyter_core", "IPython", "pandas", "scipy", "safetensors")


def _loaded(code):
    report = f"{code}; import sys; print([m for m in {HEAVY!r} if m in sys.modules], 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", report], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_package_alone_pulls_in_nothing():
    assert _loaded("import latent_moe") == "[] False"


def test_the_core_needs_torch_only():
    modules = ", ".join(f"latent_moe.{name}" for name in CORE)
    assert _loaded(f"import {modules}; from latent_moe import *") == "[] True"


def test_the_core_knows_nothing_of_the_lab():
    code = "import latent_moe.runner, latent_moe.layer, sys; print([m for m in sys.modules if 'latent_moe' in m])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = ast.literal_eval(done.stdout)
    assert "latent_moe.runner" in loaded
    assert not [name for name in loaded if {"lab", "cost", "profiles"} & set(name.split("."))]


@pytest.mark.parametrize("name", CORE)
def test_the_core_imports_torch_and_the_standard_library_at_its_top(name):
    path = PACKAGE / name
    files = list(path.rglob("*.py")) if path.is_dir() else [path.with_suffix(".py")]
    assert files
    allowed = {"torch", "latent_moe", "triton", *sys.stdlib_module_names}
    for file in files:
        tree = ast.parse(file.read_text(encoding="utf-8"), feature_version=(3, 11))
        for node in tree.body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            assert {found.split(".")[0] for found in names} <= allowed, file
