"""An executed notebook as a page that needs no network: figures drawn from one local plotly.js, widgets left out."""

import copy
import html
from pathlib import Path
from urllib.parse import quote

import nbformat
from nbconvert import HTMLExporter
from pygments.formatters import HtmlFormatter

from latent_moe.lab.report.execute import Executed
from latent_moe.lab.report.figures import PLOTLY, figure_html
from latent_moe.lab.report.markup import readable

WIDGET = "application/vnd.jupyter.widget-view+json"
HERE = Path(__file__).parent
SLIDER_NOTE = (
    '<p class="slider-note">Sliders stand here when the notebook runs in JupyterLab; the figures of this page show '
    "their defaults.</p>"
)
Links = list[tuple[str, str]]


def notebook_page(one: Executed, links: Links) -> str:
    """The page of one notebook; `links` are (file name, text) for the navigation."""
    fault = f'<p class="fault">This notebook stopped: {html.escape(one.error)}</p>' if one.error else ""
    return page(
        one.name.replace("_", " "), fault + _exported(_drawable(one.notebook)), links, f"{one.name}.html"
    )


def page(title: str, body: str, links: Links, name: str = "index.html") -> str:
    """A whole HTML document around `body`; `name` is its own file name, which the navigation marks."""
    places = "".join(_place(file, text, file == name) for file, text in links)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<title>{html.escape(title)} · latent_moe</title>"
        '<link rel="stylesheet" href="assets/report.css"><script src="assets/plotly.min.js"></script></head>'
        f'<body><a class="skip" href="#content">To the content</a><nav aria-label="pages">{places}</nav>'
        f'<main id="content" tabindex="-1">{readable(body)}</main>'
        '<script src="assets/report.js"></script></body></html>\n'
    )


def _place(file: str, text: str, current: bool) -> str:
    mark = ' aria-current="page"' if current else ""
    return f'<a href="{quote(file)}"{mark}>{html.escape(text)}</a>'


def _exported(notebook: nbformat.NotebookNode, **options) -> str:
    exporter = HTMLExporter(template_name="basic", exclude_anchor_links=True, **options)
    return exporter.from_notebook_node(notebook)[0]


def _drawable(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """A copy whose figures are HTML and whose widgets are a note."""
    shown = copy.deepcopy(notebook)
    cells = [cell for cell in shown.cells if cell.cell_type == "code"]
    before = None
    for cell in cells:
        # Under a slider stands the figure of its defaults, which the cell before it has mostly drawn already.
        wanted = [one for one in cell.outputs if _worth_showing(one) and _figure(one) != (before or {})]
        before = next((_figure(one) for one in reversed(cell.outputs) if _figure(one)), before)
        cell.outputs = [_output(output) for output in wanted]
    return shown


def _figure(output) -> dict | None:
    return output.get("data", {}).get(PLOTLY)


def _worth_showing(output) -> bool:
    # Warnings of libraries on standard error are no result.
    return not (output.output_type == "stream" and output.name == "stderr")


def _output(output):
    data = output.get("data", {})
    if PLOTLY in data:
        output.data = {"text/html": figure_html(data[PLOTLY])}
    elif WIDGET in data:
        output.data = {"text/html": SLIDER_NOTE}
    return output


def reported(notebook: nbformat.NotebookNode) -> str:
    """The outputs of cells tagged "report" as HTML for the index, whatever their kind; empty where there are none."""
    shown = _drawable(notebook)
    shown.cells = [
        cell for cell in shown.cells if "report" in cell.metadata.get("tags", []) and cell.get("outputs")
    ]
    return _exported(shown, exclude_input=True) if shown.cells else ""


def style() -> str:
    """report.css with the colours of code."""
    return (HERE / "report.css").read_text(encoding="utf-8") + HtmlFormatter(style="bw").get_style_defs(
        ".highlight"
    )
