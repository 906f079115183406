"""The report's pages: index.html and one page a notebook, from the templates beside this file; no network is needed.

Figures are drawn from one local plotly.js; sliders are left out, as they need a running notebook.
"""

import base64
import copy
import gzip
import json
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import nbformat
from bs4 import BeautifulSoup, Tag
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from nbconvert import HTMLExporter
from plotly.offline import get_plotlyjs
from pygments.formatters import HtmlFormatter

from latent_moe.files import write_whole
from latent_moe.lab.plots.theme import alt_text, plain, title_of
from latent_moe.lab.report.execute import Executed
from latent_moe.lab.report.throughput import beside, headlines

PLOTLY = "application/vnd.plotly.v1+json"
WIDGET = "application/vnd.jupyter.widget-view+json"
HERE = Path(__file__).parent
SLIDER_NOTE = (
    '<p class="slider-note">Sliders stand here when the notebook runs in JupyterLab; the figures of this page show '
    "their defaults.</p>"
)
TITLES = {
    "01_latent_moe": "What a latent MoE layer is, and what its tail costs",
    "02_sharded_up_projection": "Why an all-reduce can do an all-gather's work",
    "03_profile_gemms": "The replicated and the sharded GEMM, recorded and put under the roofline",
    "04_read_rocprof_traces": "Traces opened, compared, and the traps in them",
    "05_end_to_end_throughput": "Both arms served by vLLM, and a table with intervals",
    "06_cost_model": "What a tail is made of, and which tail is the cheapest where",
    "07_predict_and_decide": "What the change is worth: predicted against published, and on your machine",
}
_TEMPLATES = Environment(
    loader=FileSystemLoader(HERE / "templates"), autoescape=True, undefined=StrictUndefined
)
Links = list[tuple[str, str]]


def _rendered(template: str, **values: Any) -> Markup:
    return Markup(_TEMPLATES.get_template(template).render(**values))


def write(folder: Path, done: list[Executed], summary: dict[str, Any]) -> None:
    """Write everything but summary.json into `folder`; index.html is one file that needs none of the others."""
    css = (HERE / "report.css").read_text(encoding="utf-8")
    css += HtmlFormatter(style="bw").get_style_defs(".highlight")
    js, plotly = (HERE / "report.js").read_text(encoding="utf-8"), get_plotlyjs()
    for name, text in (("report.css", css), ("report.js", js), ("plotly.min.js", plotly)):
        write_whole(folder / "assets" / name, text)
    links = [("index.html", "Report"), *((f"{one.name}.html", one.name.replace("_", " ")) for one in done)]
    for executed in done:
        write_whole(folder / f"{executed.name}.html", notebook_page(executed, links))
        nbformat.write(executed.notebook, folder / f"{executed.name}.ipynb")
    packed = base64.b64encode(gzip.compress(plotly.encode("utf-8"), 9, mtime=0)).decode("ascii")
    inlined = {"css": Markup(css), "js": Markup(js), "plotly": packed}
    write_whole(folder / "index.html", page("Report", _index(folder, done, summary), links, inlined=inlined))


def page(
    title: str, body: str, links: Links, name: str = "index.html", inlined: dict[str, str] | None = None
) -> str:
    """A whole HTML document around `body`; `name` is its own file name, which the navigation marks.

    `inlined`: css, js and plotly.js (packed) that stand in the page itself; without it the page takes them from assets/.
    """
    files = {file for file, _ in links}
    return _rendered(
        "page.html", title=title, body=readable(body, files), links=links, name=name, inlined=inlined
    )


def notebook_page(executed: Executed, links: Links) -> str:
    """The page of one notebook; `links` are (file name, text) for the navigation."""
    body = _rendered("notebook.html", error=executed.error, cells=_exported(_drawable(executed.notebook)))
    return page(executed.name.replace("_", " "), body, links, f"{executed.name}.html")


def _index(folder: Path, done: list[Executed], summary: dict[str, Any]) -> str:
    outputs = [(TITLES.get(one.name, one.name), reported(one.notebook)) for one in done]
    return _rendered(
        "index.html",
        headlines=headlines(folder, done),
        facts=_facts(summary),
        notebooks=done,
        titles=TITLES,
        throughput=section(folder, done),
        arms=summary["arms"],
        shown=[(title, html) for title, html in outputs if html],
    )


def _facts(summary: dict[str, Any]) -> dict[str, str]:
    here, peak = summary["platform"], summary["peak_memory_bytes"]
    return {
        "Device": f"{here['device_name']} ({here['kind']})",
        "Date": summary["date"],
        "Software": f"torch {here['torch_version']}, vLLM {here['vllm_version'] or 'not installed'}",
        "Time": f"{summary['seconds']:.0f} s",
        "Peak memory": f"{peak / 2**30:.1f} GiB" if peak else "not known",
    }


def section(folder: Path, done: Sequence[Executed]) -> Markup:
    """The table of throughput: this machine's rows and the pull request's in the same columns."""
    return _rendered("throughput.html", beside=beside(folder, done))


def reported(notebook: nbformat.NotebookNode) -> str:
    """The outputs of cells tagged "report" as HTML for the index, whatever their kind; empty where there are none."""
    shown = _drawable(notebook)
    shown.cells = [
        cell for cell in shown.cells if "report" in cell.metadata.get("tags", []) and cell.get("outputs")
    ]
    return _exported(shown, exclude_input=True) if shown.cells else ""


def _exported(notebook: nbformat.NotebookNode, **options) -> Markup:
    exporter = HTMLExporter(template_name="basic", exclude_anchor_links=True, **options)
    return Markup(exporter.from_notebook_node(notebook)[0])


def _drawable(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """A copy whose figures are HTML and whose widgets are a note."""
    shown = copy.deepcopy(notebook)
    before = None
    for cell in (cell for cell in shown.cells if cell.cell_type == "code"):
        # Under a slider stands the figure of its defaults, which the cell before it has mostly drawn already.
        wanted = [out for out in cell.outputs if not _on_stderr(out) and _figure(out) != (before or {})]
        before = next((_figure(out) for out in reversed(cell.outputs) if _figure(out)), before)
        cell.outputs = [_as_html(output, cell.metadata.get("see", "")) for output in wanted]
    return shown


def _figure(output) -> dict | None:
    return output.get("data", {}).get(PLOTLY)


def _on_stderr(output) -> bool:
    # Warnings of libraries on standard error are no result.
    return output.output_type == "stream" and output.name == "stderr"


def _as_html(output, see: str):
    data = output.get("data", {})
    if PLOTLY in data:
        output.data = {"text/html": figure_html(data[PLOTLY], see)}
    elif WIDGET in data:
        output.data = {"text/html": SLIDER_NOTE}
    return output


def figure_html(figure: dict, see: str = "") -> str:
    """A place for a figure and its data; report.js draws it. `see` says what to look for.

    Title and caption are text, so that they wrap; readers without the picture get its description with the numbers.
    """
    layout = figure.get("layout", {})
    title, _, source = title_of(figure).partition("<br>")
    # A script element ends at "</" wherever that stands.
    data = json.dumps({"data": figure["data"], "layout": layout}).replace("</", "<\\/")
    values = {"description": alt_text(figure), "height": layout.get("height", 440), "see": see}
    return _rendered("figure.html", data=Markup(data), title=plain(title), source=plain(source), **values)


def readable(body: str, files: Collection[str] = ()) -> Markup:
    """`body` with links that lead somewhere, each table in a scrolling place of its own, header cells that say what they head, blocks of code
    that the keyboard reaches.
    """
    soup = BeautifulSoup(body, "html.parser")
    for style in soup.find_all("style", attrs={"scoped": True}):
        # pandas' own: no browser scopes it, and it sets heads to the other side than their columns.
        style.decompose()
    for table in soup.find_all("table"):
        if table.find_parent(class_="wide") is None:
            table.wrap(soup.new_tag("div", attrs={"class": "wide", "tabindex": "0"}))
        _name_header_cells(table)
    for link in soup.find_all("a", href=True):
        _lead_somewhere(link, files)
    for block in soup.find_all("pre"):
        block["tabindex"] = "0"
    return Markup(soup)


def _name_header_cells(table: Tag) -> None:
    for cell in table.find_all("th"):
        if not cell.get_text(strip=True):
            # The corner above an index heads nothing.
            cell.name = "td"
        elif not cell.get("scope"):
            cell["scope"] = "col" if cell.find_parent("thead") else "row"


def _lead_somewhere(link: Tag, files: Collection[str]) -> None:
    """A link to a notebook leads to its page; one to a file of the checkout, which is not here, is text."""
    target = str(link["href"])
    if re.match(r"[a-z]+:|#", target) or unquote(target) in files:
        return
    page_name = target.removesuffix(".ipynb") + ".html"
    if page_name in files:
        link["href"] = page_name
    else:
        link.unwrap()
