"""Notebook 01 runs through the tour's own execute, also from a folder whose path has a space."""

import shutil
from pathlib import Path

import pytest

from latent_moe.lab.report.execute import execute, surroundings

NOTEBOOK = Path(__file__).parents[3] / "notebooks" / "01_latent_moe.ipynb"


@pytest.mark.slow
def test_notebook_01_from_a_folder_with_a_space(tmp_path):
    folder = tmp_path / "my notebooks"
    folder.mkdir()
    copy = Path(shutil.copy(NOTEBOOK, folder))
    with surroundings(folder):
        done = execute(copy, folder)
    assert done.ok, done.error
    code = [cell for cell in done.notebook.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in code)
