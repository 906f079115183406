"""A headless Chromium, as Debian packages it, and a whole report of seven notebooks to look at."""

import os
import shutil
import subprocess
import sys
import tarfile
from contextlib import suppress
from pathlib import Path

import nbformat
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from latent_moe.lab.recordings import profile_path
from latent_moe.lab.report import run_tour

AXE = "axe-core@4.14.1"
# What takes vLLM minutes has tests of its own: here notebook 05 reads a recording.
SHORTER = {
    "02_sharded_up_projection": ("ask_vllm = True", "ask_vllm = False"),
    "05_end_to_end_throughput": ("results = None", f"results = {str(profile_path('cpu_demo'))!r}"),
}


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """A Chromium for a file's tests, 1280 px wide; it ends with this process whatever ends that.

    Not one for all: Tab may leave the focus outside the page, and JupyterLab has no current notebook without it.
    """
    pytest.importorskip("selenium")
    import chromium

    if chromium.missing():
        pytest.skip("chromium and chromium-driver are not installed")
    chrome = chromium.start(tmp_path_factory.mktemp("driver"))
    yield chrome
    chrome.quit()


@pytest.fixture(scope="session")
def report(tmp_path_factory, repository):
    """The folder of a tour of all seven notebooks, or the one that LATENT_MOE_REPORT names."""
    if given := os.environ.get("LATENT_MOE_REPORT"):
        return Path(given).resolve()
    notebooks = tmp_path_factory.mktemp("notebooks")
    for path in sorted((repository / "notebooks").glob("[0-9][0-9]_*.ipynb")):
        nbformat.write(_shorter(path), notebooks / path.name)
    tour = run_tour(tmp_path_factory.mktemp("a report"), notify=lambda _: None, notebooks=notebooks)
    assert tour.ok, tour.summary["notebooks"]
    return tour.folder


def _shorter(path):
    notebook = nbformat.read(path, as_version=4)
    old, new = SHORTER.get(path.stem, ("", ""))
    cells = [cell for cell in notebook.cells if cell.cell_type == "code" and old and old in cell.source]
    assert len(cells) == bool(old), f"{path.name}: not one cell says {old!r}"
    for cell in cells:
        cell.source = cell.source.replace(old, new)
    return notebook


@pytest.fixture(scope="session")
def axe(request, tmp_path_factory):
    """axe-core's script, from npm and kept in pytest's cache; None where npm or its registry is not at hand."""
    kept = getattr(request.config, "cache", None)
    folder = kept.mkdir(AXE.replace("@", "-")) if kept else tmp_path_factory.mktemp("axe")
    script = folder / "axe.min.js"
    if not script.is_file() and shutil.which("npm"):
        with suppress(subprocess.SubprocessError, tarfile.TarError, KeyError):
            pack = ["npm", "pack", AXE, "--cache", str(folder / "npm")]
            subprocess.run(pack, cwd=folder, capture_output=True, timeout=120, check=True)
            with tarfile.open(next(folder.glob("*.tgz"))) as archive:
                script.write_bytes(archive.extractfile("package/axe.min.js").read())
    return script.read_text(encoding="utf-8") if script.is_file() else None
