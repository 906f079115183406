"""A tour of three small notebooks, one of which breaks, and notebooks made by hand for the report's parts."""

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from latent_moe.lab.report import run_tour
from latent_moe.lab.report.execute import Executed

ODD = '03_odd "name" & <b> #1 50%?'
FIGURE = """from latent_moe.lab.plots.theme import finish
import plotly.graph_objects as go
finish(go.Figure(go.Scatter(x=[1, 2], y=[3, 4], name="</script> & one")), "A line", "synthetic", "step", "time, us")"""
SLIDER = """import ipywidgets as widgets
from plotly.graph_objects import Figure, Scatter
draw = [lambda n: Figure(Scatter(y=[n, 2]), layout={"title": f"n = {n}, the default of a slider"})][0]
draw(1)"""
INTERACT = "widgets.interact(draw, n=widgets.IntSlider(min=1, max=3, value=1));"
MARKDOWN = """from IPython.display import Markdown
Markdown("| tail | us |\\n|---|---|\\n| replicated | **27.4** |")"""


def _notebook(*cells):
    made = new_notebook(cells=list(cells))
    made.metadata.kernelspec = {"name": "python3", "display_name": "Python 3"}
    return made


def _tagged(source):
    return new_code_cell(source, metadata={"tags": ["report"]})


@pytest.fixture(scope="session")
def tour(tmp_path_factory):
    """run_tour's answer for the three notebooks, in a folder with a space in its name."""
    sources = tmp_path_factory.mktemp("notebooks")
    shown = [
        _tagged(FIGURE),
        _tagged(MARKDOWN),
        _tagged("print('said on stdout')"),
        new_code_cell("'untagged'"),
    ]
    sliders = [new_code_cell(SLIDER), new_code_cell(INTERACT)]
    notebooks = {
        "01_fine": [new_markdown_cell("# One\n\n| a | b |\n|---|---|\n| 1 | 2 |"), *shown, *sliders],
        "02_breaks": [
            _tagged("'before the fault'"),
            new_code_cell("raise ValueError('broken & <i>on purpose</i>')"),
        ],
        ODD: [new_markdown_cell("# Odd"), new_code_cell("1 + 1")],
    }
    for name, cells in notebooks.items():
        nbformat.write(_notebook(*cells), sources / f"{name}.ipynb")
    return run_tour(tmp_path_factory.mktemp("out") / "a report", notify=lambda _: None, notebooks=sources)


@pytest.fixture
def executed():
    """A maker of executed notebooks: name, what it printed, its error."""

    def make(name, printed="", error=None):
        cell = new_code_cell("print()", outputs=[new_output("stream", name="stdout", text=printed)])
        return Executed(name, _notebook(cell), 1.0, error)

    return make
