"""Every notebook with its task solved runs headless, and check() says that it is right; unsolved, check() says what is missing."""

from pathlib import Path

import nbformat
import pytest

from latent_moe.lab.notebooks.tasks import TASKS
from latent_moe.lab.recordings import profile_path
from latent_moe.lab.report.execute import execute, surroundings

PATHS = sorted((Path(__file__).resolve().parents[3] / "notebooks").glob("[0-9][0-9]_*.ipynb"))
# vLLM's class and vLLM's servers have tests of their own.
PARAMETERS = {
    "ask_vllm = True": "ask_vllm = False",
    "results = None": f"results = {str(profile_path('h200x2_vllm'))!r}",
}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
@pytest.mark.parametrize("solved", [True, False], ids=["solved", "unsolved"])
def test_a_notebook_runs(path, solved, tmp_path):
    notebook = nbformat.read(path, as_version=4)
    number = path.stem[:2]
    for cell in notebook.cells:
        if cell.source.startswith("# Task") and solved:
            cell.source = TASKS[number].solution
        for before, after in PARAMETERS.items():
            cell.source = cell.source.replace(before, after)
    copy = tmp_path / path.name
    nbformat.write(notebook, copy)
    with surroundings(tmp_path):
        done = execute(copy, tmp_path)
    assert done.ok, done.error
    [judged] = [
        cell for cell in done.notebook.cells if cell.source.endswith(f'check("{number}"{_answer(cell)}')
    ]
    said = judged.outputs[-1].data["text/plain"]
    assert said.startswith("Right." if solved else "To do."), said
    assert "<summary>Solution</summary>" in judged.outputs[-1].data["text/html"]
    errors = [
        out for cell in done.notebook.cells for out in cell.get("outputs", []) if out.get("name") == "stderr"
    ]
    assert not errors, errors


def _answer(cell) -> str:
    return cell.source.rsplit('check("', 1)[-1][3:] if 'check("' in cell.source else "never"
