"""`latent-moe bench` with the stand-in for vLLM before the real one: servers and clients are real processes."""

import io
import os
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from processes import MARK

from latent_moe.cli import main

STAND_IN = Path(__file__).parent / "stand_in"

RECIPE = """
name = "stand_in"
title = "Both arms of a stand-in for vLLM"
pairs = {pairs}
discard_first = false
[model]
preset = "served_tiny"
[server]
args = ["--no-enable-prefix-caching"{server_args}]
startup_timeout_s = 30
[client]
isl = 8
osl = 4
concurrencies = [2, 3]
prompts_per_concurrency = 2
timeout_s = 60
args = ["--temperature", "0"{client_args}]
{more}
[arms.one]
role = "baseline"
env = {{ LATENT_MOE_TAIL = "replicated"{one_env} }}
[arms.two]
role = "candidate"
env = {{ LATENT_MOE_TAIL = "column_parallel"{two_env} }}
"""


CONSOLE = """#!/bin/sh
case "$1" in
  serve) shift 2; exec "{python}" -m vllm.entrypoints.openai.api_server "$@" ;;
  bench) shift 2; exec "{python}" -m latent_moe.lab.bench.client "$@" ;;
esac
"""


def console_environment(folder: Path) -> dict[str, str]:
    """The environment in which `vllm` is the stand-in's command."""
    tool = folder / "bin" / "vllm"
    tool.parent.mkdir(exist_ok=True)
    tool.write_text(CONSOLE.format(python=sys.executable))
    tool.chmod(0o755)
    return {"PATH": f"{tool.parent}:{os.environ['PATH']}"}


def write_recipe(folder: Path, pairs: int = 1, **parts: str) -> Path:
    """A recipe of two arms; `parts` are put where their names stand in RECIPE."""
    names = ("server_args", "client_args", "more", "one_env", "two_env")
    path = folder / "stand_in.toml"
    path.write_text(RECIPE.format(pairs=pairs, **{name: parts.get(name, "") for name in names}))
    return path


def environment(mark: str, **env: str) -> dict[str, str]:
    """The environment of a bench whose processes carry `mark`."""
    return {**os.environ, MARK: mark, "PYTHONPATH": str(STAND_IN), **env}


@dataclass(frozen=True)
class Done:
    """How a command ended and what it printed."""

    returncode: int
    stdout: str
    stderr: str


def words(recipe: Path, out: Path, *options: str) -> list[str]:
    """The command line."""
    return [sys.executable, "-m", "latent_moe", "bench", str(recipe), "--out", str(out), *options]


def bench(recipe: Path, out: Path, *options: str, mark: str, **env: str) -> Done:
    """Run it to its end in this process (importing torch once for all tests)."""
    printed, said = io.StringIO(), io.StringIO()
    with (
        mock.patch.dict(os.environ, environment(mark, **env)),
        redirect_stdout(printed),
        redirect_stderr(said),
    ):
        code = main(words(recipe, out, *options)[3:])
    return Done(code, printed.getvalue(), said.getvalue())


def one_line(done: Done) -> str:
    """The one line that says what went wrong."""
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("latent-moe: ")]
    assert "Traceback" not in done.stderr.split("last lines of the log:")[0]
    return line


def result_files(out: Path) -> dict[str, bytes]:
    """Every run that was saved."""
    return {path.name: path.read_bytes() for path in (out / "runs").glob("*")}
