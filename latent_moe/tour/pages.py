"""An executed notebook as a page that needs no network: figures drawn from one local plotly.js, widgets left out."""

import copy
import html
import json
from pathlib import Path

import nbformat
from nbconvert import HTMLExporter
from pygments.formatters import HtmlFormatter

from latent_moe.plots.theme import alt_text
from latent_moe.tour.execute import Executed

PLOTLY = "application/vnd.plotly.v1+json"
WIDGET = "application/vnd.jupyter.widget-view+json"
HERE = Path(__file__).parent
SLIDER_NOTE = '<p class="slider-note">Sliders stand here when the notebook runs in JupyterLab; the figures of this page show their defaults.</p>'


def notebook_page(one: Executed, links: list[tuple[str, str]]) -> str:
    """The page of one notebook; `links` are (address, text) for the navigation."""
    body, _ = HTMLExporter(template_name="basic").from_notebook_node(_drawable(one.notebook))
    fault = f'<p class="fault">This notebook stopped: {html.escape(one.error)}</p>' if one.error else ""
    return page(one.name.replace("_", " "), fault + body, links)


def page(title: str, body: str, links: list[tuple[str, str]]) -> str:
    """A whole HTML document around `body`."""
    places = "".join(f'<a href="{address}">{html.escape(text)}</a>' for address, text in links)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<title>{html.escape(title)} · latent_moe</title>"
        '<link rel="stylesheet" href="assets/report.css"><script src="assets/plotly.min.js"></script></head>'
        f'<body><a class="skip" href="#content">To the content</a><nav aria-label="pages">{places}</nav>'
        f'<main id="content">{body}</main><script src="assets/report.js"></script></body></html>\n'
    )


def figure_html(figure: dict) -> str:
    """A place for a figure and its data; report.js draws it. Readers without the picture get its description."""
    said = html.escape(alt_text(figure), quote=True)
    # A script element ends at "</" wherever that stands.
    data = json.dumps({"data": figure["data"], "layout": figure.get("layout", {})}).replace("</", "<\\/")
    height = figure.get("layout", {}).get("height", 440)
    return (
        f'<div class="figure" role="img" tabindex="0" aria-label="{said}" style="min-height:{height}px">'
        f'<script type="application/json">{data}</script></div>'
    )


def _drawable(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """A copy whose figures are HTML and whose widgets are a note."""
    shown = copy.deepcopy(notebook)
    for cell in shown.cells:
        if cell.cell_type == "code":
            cell.outputs = [_output(output) for output in cell.outputs if _worth_showing(output)]
    return shown


def _worth_showing(output) -> bool:
    # Warnings of libraries on standard error are no result.
    return not (output.output_type == "stream" and output.name == "stderr")


def _output(output):
    data = output.get("data", {})
    if PLOTLY in data:
        output.data = {"text/html": figure_html(data[PLOTLY])}
    elif WIDGET in data:
        output.data = {"text/html": SLIDER_NOTE}
    elif "text/html" in data:
        output.data = {"text/html": f'<div class="wide" tabindex="0">{data["text/html"]}</div>'}
    return output


def reported(notebook: nbformat.NotebookNode) -> list[str]:
    """The HTML of the outputs of cells tagged "report", for the index."""
    found = []
    for cell in notebook.cells:
        if "report" in cell.metadata.get("tags", []):
            for output in (_output(copy.deepcopy(one)) for one in cell.get("outputs", [])):
                found += [output.data["text/html"]] if "text/html" in output.get("data", {}) else []
    return found


def style() -> str:
    """report.css with the colours of code."""
    return (HERE / "report.css").read_text(encoding="utf-8") + HtmlFormatter(style="bw").get_style_defs(
        ".highlight"
    )
