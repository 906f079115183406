"""An arm in a real container, where podman is there and may run one: the image holds a command `vllm` alone."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest
from bench_driver import STAND_IN, bench, environment, result_files, words, write_recipe
from processes import wait_gone

IMAGE = "localhost/latent_moe_test:1"
PROGRAM = f"""#!/bin/sh
shift 2
export PYTHONPATH={STAND_IN} PYTHONUNBUFFERED=1
exec {sys.executable} -m vllm.entrypoints.openai.api_server "$@"
"""


def mounts() -> list[str]:
    """This machine's programs and pythons, read-only, at the same places."""
    top = {"/usr", "/bin", "/lib", "/lib64", sys.base_prefix, sys.prefix, str(STAND_IN.parents[3])}
    return [word for path in sorted(top) if Path(path).exists() for word in ("--volume", f"{path}:{path}:ro")]


def podman(*words: str) -> subprocess.CompletedProcess:
    return subprocess.run(["podman", *words], capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    """An image whose /opt/bin/vllm starts the stand-in."""
    if shutil.which("podman") is None:
        pytest.skip("podman is not on the PATH")
    folder = tmp_path_factory.mktemp("image")
    program = folder / "root" / "opt" / "bin" / "vllm"
    for name in ("opt/bin", "proc", "sys", "dev", "tmp", "etc"):
        (folder / "root" / name).mkdir(parents=True, exist_ok=True)
    program.write_text(PROGRAM)
    program.chmod(0o755)
    with tarfile.open(folder / "root.tar", "w") as archive:
        archive.add(folder / "root", ".")
    imported = podman(
        "import", "--change", "ENV PATH=/opt/bin:/usr/bin:/bin", str(folder / "root.tar"), IMAGE
    )
    tried = podman(
        "run", "--rm", "--network", "host", "--ipc", "host", *mounts(), "--entrypoint", "/bin/true", IMAGE
    )
    if imported.returncode or tried.returncode:
        pytest.skip(f"podman runs no container here: {(imported.stderr + tried.stderr).splitlines()[-1]}")
    yield IMAGE
    podman("rmi", "--force", IMAGE)


def recipe_of(tmp_path, image: str):
    recipe = write_recipe(tmp_path)
    text = recipe.read_text().replace("[server]\n", '[server]\nruntime = "podman"\n')
    for arm in ("one", "two"):
        more = f'image = "{image}"\ncontainer_args = {json.dumps(mounts())}\n'
        text = text.replace(f"[arms.{arm}]\n", f"[arms.{arm}]\n{more}")
    recipe.write_text(text)
    return recipe


def containers() -> list[str]:
    return podman("ps", "--all", "--format", "{{.Names}}").stdout.split()


def test_both_arms_in_containers_that_are_ended_too(tmp_path, image):
    out, mark = tmp_path / "out", f"podman-{os.getpid()}"
    done = bench(recipe_of(tmp_path, image), out, mark=mark)
    assert done.returncode == 0, done.stderr
    assert len(result_files(out)) == 4
    assert [name for name in containers() if name.startswith("latent_moe_")] == []
    assert wait_gone(mark, 5) == []


def test_a_killed_command_leaves_no_container(tmp_path, image):
    out, mark = tmp_path / "out", f"podman-killed-{os.getpid()}"
    env = environment(mark, STAND_IN_CLIENT="slow")
    process = subprocess.Popen(words(recipe_of(tmp_path, image), out), env=env, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 90
    while not list(out.glob("logs/*/client_jobs.done0")) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert [name for name in containers() if name.startswith("latent_moe_")]
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert wait_gone(mark, 90) == []
    assert [name for name in containers() if name.startswith("latent_moe_")] == []
