"""`make lab` opens on a copy of notebook 01: the commands of the Makefile, run as they stand, in a copy of the notebooks' place."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from lab import free_port, kept, wait_for, wait_for_kernel

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(200)]


@pytest.fixture
def checkout(tmp_path, repository):
    """A folder with a space in its name that holds what `make lab` needs."""
    folder = tmp_path / "my checkout"
    shutil.copytree(
        repository / "notebooks", folder / "notebooks", ignore=shutil.ignore_patterns("runs", ".*")
    )
    shutil.copy(repository / "Makefile", folder)
    (folder / ".venv" / "bin").mkdir(parents=True)
    (folder / ".venv" / "bin" / "jupyter").symlink_to(Path(sys.executable).with_name("jupyter"))
    return folder


def test_the_printed_address_opens_notebook_01(checkout, browser, tmp_path):
    # Without a browser of its own, and on a free port: what someone types on a machine reached by ssh.
    words = ["make", "--no-print-directory", "-n", "lab", f"LAB=--no-browser --port={free_port()}"]
    lines = subprocess.run(
        words, cwd=checkout, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    subprocess.run("\n".join(lines[-3:-1]), cwd=checkout, shell=True, check=True)
    place, *command = shlex.split(lines[-1])
    assert command[0] == ".venv/bin/jupyter"
    assert place == f"LATENT_MOE_RUN={checkout}/runs/lab"
    settings = tmp_path / "settings"
    settings.mkdir()
    with kept([*command, "--LabApp.expose_app_in_browser=True"], settings, checkout) as log:
        found = wait_for(
            lambda: re.search(r"http://127\.0\.0\.1\S+token=\w+", log.read_text()), 60, "the address"
        )
        browser.get(found.group())
        wait_for_kernel(browser)
        path = browser.execute_script("return window.jupyterapp.shell.currentWidget.context.path")
    assert path == "runs/lab/notebooks/01_latent_moe.ipynb"
