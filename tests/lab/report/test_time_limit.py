"""A cell that takes too long is named as that."""

import nbformat
from nbformat.v4 import new_code_cell, new_notebook

from latent_moe.lab.report.execute import execute, surroundings


def test_a_slow_cell_is_ended_and_said(tmp_path):
    notebook = new_notebook(cells=[new_code_cell("import time; time.sleep(60)")])
    nbformat.write(notebook, tmp_path / "01_slow.ipynb")
    with surroundings(tmp_path):
        done = execute(tmp_path / "01_slow.ipynb", tmp_path, timeout_s=2)
    assert done.error == "a cell took longer than 2 s"
    assert done.seconds < 50
