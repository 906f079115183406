"""What every committed notebook keeps: no outputs, short cells, one task, links, its three questions and their answers."""

import ast
import re
import subprocess
import sys
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
    assert max(len(cell.source.splitlines()) for cell in _code(notebook)) <= 9


def test_nothing_is_defined_outside_the_task(notebook):
    defined = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    for cell in _code(notebook):
        if cell.source.startswith("# Task"):
            continue
        assert not [node for node in ast.walk(ast.parse(cell.source)) if isinstance(node, defined)]


def test_one_task_that_check_judges(notebook):
    sources = [cell.source for cell in _code(notebook)]
    [place] = [i for i, source in enumerate(sources) if source.startswith("# Task")]
    assert "..." in sources[place]
    number = notebook_number(notebook)
    assert f'check("{number}", ' in sources[place + 1]


def notebook_number(notebook):
    return notebook.cells[0].source.split("# ")[1][:2]


def test_a_prediction_asks_and_the_explanation_is_folded(notebook):
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            blocks = cell.source.split("\n\n")
            assert all(
                "?" in block or "**Predict** which" in block for block in blocks if "**Predict" in block
            )
            assert "**Explain" not in cell.source


def test_every_link_leads_to_a_file(notebook):
    prose = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    links = re.findall(r"\]\(([^)\s]+)\)", prose)
    assert "README.md" in links
    for link in links:
        assert link.startswith("https://github.com/") or (PATHS[0].parent / link).exists(), link


def test_names_exist():
    words = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--isolated",
        "--select",
        "F821,F811,F401",
        *map(str, PATHS),
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_questions_answers_and_exercise(notebook):
    prose = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    assert all(f"\n{number}. " in prose[0] for number in (1, 2, 3))
    last = "\n".join(prose).split("## Answers")[1]
    assert all(f"\n{number}. " in last for number in (1, 2, 3))
    assert "**Exercise" in last
    assert "<details>" in last
