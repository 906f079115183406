"""The page itself: data, style and script in one file that asks the network for nothing.

A recording is hostile input. Its texts reach the page as JSON inside a script element, with every `<` escaped, and the
script writes them as text, never as markup. The content security policy allows this page's own script and style by
their hashes and nothing else.
"""

import base64
import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from latent_moe import files
from latent_moe.lab.cost import hardware
from latent_moe.lab.trace_report.data import packed_kernels, page_data
from latent_moe.lab.traces.table import Trace
from latent_moe.lab.traces.tail_finder import find_tail

HERE = Path(__file__).parent
SCRIPTS = ("store.js", "timeline.js", "tables.js", "start.js")


def write(
    out: str | Path,
    trace: Trace,
    baseline: Trace | None = None,
    device: str | None = None,
    tp: int | None = None,
) -> dict[str, Any]:
    """Write the page of `trace`, compared with `baseline` where one is given; returns its figures.

    `device` is a name that the cost model knows, `tp` the number of ranks where the recording does not tell.
    Raises InputError for an unknown device, OSError where `out` cannot be written.
    """
    data, text = _rendered(trace, baseline, device, tp)
    files.write_whole(Path(out), text)
    return data | {"file": str(out), "bytes": len(text.encode("utf-8"))}


class EmbeddedPage:
    """The page inside a notebook: a cell that ends with it shows it, in a frame that may run nothing but its own script."""

    def __init__(
        self, trace: Trace, baseline: Trace | None = None, device: str | None = None, tp: int | None = None
    ):
        _, self.text = _rendered(trace, baseline, device, tp)

    def _repr_html_(self) -> str:
        return f'<iframe title="the recording" sandbox="allow-scripts" width="100%" height="900" srcdoc="{escape(self.text)}"></iframe>'


def _rendered(
    trace: Trace, baseline: Trace | None, device: str | None, tp: int | None
) -> tuple[dict[str, Any], str]:
    """The page's data and its text."""
    data = page_data(trace)
    device = device or (hardware.of_device(trace.device) if trace.device else None)
    data["device"], data["roof"] = trace.device, _roof(device) if device else None
    data["tail"] = _tail(trace, device, tp)
    rows, packed = packed_kernels(trace.kernels)
    data["rows"] = rows
    data["compare"] = _comparison(baseline, trace)
    return data, _page(data, packed)


def _tail(trace: Trace, device: str | None, tp: int | None) -> dict[str, Any]:
    from latent_moe.lab.trace_report.tail_savings import tail_savings

    finding = find_tail(trace)
    return asdict(finding) | tail_savings(finding, device, tp or finding.tp)


def _roof(device: str) -> dict[str, Any]:
    """The ceilings of bf16 GEMMs, with the kind of their source."""
    machine = hardware.get(device)
    return {
        "device": machine.name,
        "peak_tflops": machine.peak_bf16_tflops,
        "tb_per_s": machine.hbm_tb_per_s,
        "kind": machine.kinds["peak_bf16_tflops"],
    }


def _comparison(baseline: Trace | None, candidate: Trace) -> dict[str, Any] | None:
    """The verdict by kind, and both recordings' calls by name and by shape."""
    if baseline is None:
        return None
    from latent_moe.lab.traces.compare import compare

    result = compare(baseline, candidate)
    other = page_data(baseline)
    return {
        "verdict": result.verdict,
        "reasons": result.reasons,
        "per_call": result.per_call,
        "per_step": result.per_step,
        "warnings": [asdict(warning) for warning in result.warnings],
        "by_name": other["by"]["name"],
        "gemms": other["gemms"],
        "sources": other["sources"],
    }


def _page(data: dict[str, Any], packed: str) -> str:
    style = (HERE / "page.css").read_text(encoding="utf-8")
    script = "\n".join((HERE / name).read_text(encoding="utf-8") for name in SCRIPTS)
    templates = Environment(loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined)
    return templates.get_template("page.html").render(
        title=", ".join(Path(source).name for source in data["sources"][:2]) or "recording",
        style=Markup(style),
        script=Markup(script),
        style_hash=_hash(style),
        script_hash=_hash(script),
        data=Markup(_json(data)),
        packed=Markup(packed),
    )


def _json(data: dict[str, Any]) -> str:
    # ASCII alone, so that no control or right-to-left character stands in the source; `<` cannot open a tag.
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
