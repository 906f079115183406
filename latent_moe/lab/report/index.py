"""The report's folder: a page per notebook, index.html, and one copy of plotly.js for all of them."""

import html
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import quote

import nbformat
from plotly.offline import get_plotlyjs

from latent_moe.lab.report.end_to_end import section
from latent_moe.lab.report.execute import Executed
from latent_moe.lab.report.pages import HERE, notebook_page, page, reported, style

TITLES = {
    "01_latent_moe": "What a latent MoE layer is, and what its tail costs",
    "02_sharded_up_projection": "Why an all-reduce can do an all-gather's work",
    "03_profile_gemms": "The replicated and the sharded GEMM, recorded and put under the roofline",
    "04_read_rocprof_traces": "Traces opened, compared, and the traps in them",
    "05_end_to_end_throughput": "Both arms served by vLLM, and a table with intervals",
    "06_predict": "What the change is worth elsewhere",
}


def write(folder: Path, done: list[Executed], summary: dict[str, Any]) -> None:
    """Write everything but summary.json into `folder`."""
    assets = folder / "assets"
    assets.mkdir(exist_ok=True)
    (assets / "plotly.min.js").write_text(get_plotlyjs(), encoding="utf-8")
    (assets / "report.css").write_text(style(), encoding="utf-8")
    shutil.copyfile(HERE / "report.js", assets / "report.js")
    links = [("index.html", "Report"), *((f"{one.name}.html", one.name.replace("_", " ")) for one in done)]
    for one in done:
        (folder / f"{one.name}.html").write_text(notebook_page(one, links), encoding="utf-8")
        nbformat.write(one.notebook, folder / f"{one.name}.ipynb")
    (folder / "index.html").write_text(page("Report", _index(folder, done, summary), links), encoding="utf-8")


def _index(folder: Path, done: list[Executed], summary: dict[str, Any]) -> str:
    parts = ["<h1>latent_moe: the tour on this machine</h1>", _where(summary), _list(done)]
    parts += [section(folder, done), _servers(summary["arms"])]
    for one in done:
        if shown := reported(one.notebook):
            parts.append(f"<h2>{html.escape(TITLES.get(one.name, one.name))}</h2>{shown}")
    return "".join(parts)


def _where(summary: dict[str, Any]) -> str:
    here = summary["platform"]
    peak = summary["peak_memory_bytes"]
    facts = {
        "Device": f"{here['device_name']} ({here['kind']})",
        "Date": summary["date"],
        "Software": f"torch {here['torch_version']}, vLLM {here['vllm_version'] or 'not installed'}",
        "Time": f"{summary['seconds']:.0f} s",
        "Peak memory": f"{peak / 2**30:.1f} GiB" if peak else "not known",
    }
    rows = "".join(
        f'<tr><th scope="row">{name}</th><td>{html.escape(str(text))}</td></tr>'
        for name, text in facts.items()
    )
    return f'<div class="wide" tabindex="0"><table>{rows}</table></div>'


def _list(done: list[Executed]) -> str:
    items = []
    for one in done:
        how = (
            '<span class="good">ok</span>'
            if one.ok
            else f'<span class="bad">failed: {html.escape(str(one.error))}</span>'
        )
        title = html.escape(TITLES.get(one.name, ""))
        items.append(
            f'<li><a href="{quote(one.name)}.html">{html.escape(one.name.replace("_", " "))}</a><br>{title}<br>'
            f"{one.seconds:.1f} s, {how}</li>"
        )
    return f'<h2>Notebooks</h2><ul class="grid">{"".join(items)}</ul>'


def _servers(arms: dict[str, Any]) -> str:
    if not arms:
        return ""
    rows = "".join(
        f'<tr><th scope="row">{html.escape(name)}</th><td>{html.escape(", ".join(arm["results"]))}</td>'
        f"<td>{html.escape(arm['log_line'] or 'no line names the tail')}</td></tr>"
        for name, arm in arms.items()
    )
    head = "<thead><tr><th>Arm</th><th>Results</th><th>The server's log says</th></tr></thead>"
    return f'<h2>Servers of this tour</h2><div class="wide" tabindex="0"><table>{head}<tbody>{rows}</tbody></table></div>'
