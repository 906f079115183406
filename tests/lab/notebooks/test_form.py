"""What every committed notebook keeps: no outputs, short cells, no definitions, its three questions and their answers."""

import ast
from pathlib import Path

import nbformat
import pytest

PATHS = sorted((Path(__file__).resolve().parents[3] / "notebooks").glob("[0-9][0-9]_*.ipynb"))


@pytest.fixture(params=PATHS, ids=lambda path: path.stem)
def notebook(request):
    return nbformat.read(request.param, as_version=4)


def _code(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_no_outputs_are_kept(notebook):
    assert all(not cell.outputs and cell.execution_count is None for cell in _code(notebook))
    assert notebook.metadata.kernelspec.name == "python3"


def test_cells_are_few_and_short(notebook):
    assert len(_code(notebook)) <= 30
    assert max(len(cell.source.splitlines()) for cell in _code(notebook)) <= 12


def test_nothing_is_defined(notebook):
    defined = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    for cell in _code(notebook):
        assert not [node for node in ast.walk(ast.parse(cell.source)) if isinstance(node, defined)]


def test_questions_answers_and_exercise(notebook):
    prose = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    assert all(f"\n{number}. " in prose[0] for number in (1, 2, 3))
    last = "\n".join(prose).split("## Answers")[1]
    assert all(f"\n{number}. " in last for number in (1, 2, 3))
    assert "**Exercise" in last
    assert "<details>" in last
