"""One palette and one finish for every figure: title, caption with the kind of the data, axes with units, legend.

The colours are Okabe and Ito's ("Color Universal Design", 2008): readers with any colour vision tell them apart. A
figure brings its own light ground, so that its text keeps its contrast on light and on dark pages.
"""

import base64
import math
from datetime import datetime

import numpy as np
import plotly.graph_objects as go
import plotly.io as pio

from latent_moe.errors import unknown
from latent_moe.lab.recordings import KINDS, Manifest
from latent_moe.platform import describe
from latent_moe.tail_variants.registry import NAMES

# The other renderers for notebooks fetch plotly.js from a server.
pio.renderers.default = "plotly_mimetype"

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#8C8C8C", "#B8A200")
BASELINE, CANDIDATE = COLOURS[0], COLOURS[1]
INK, GROUND, GRID = "#2b2b2b", "#fcfcfc", "#dddddd"
# Even steps of lightness from blue over white to orange: no red against green, readable in grey.
DIVERGING = ((0.0, "#0072B2"), (0.5, "#fcfcfc"), (1.0, "#D55E00"))
HEIGHT = 440
# A description names every value of a trace up to so many, and the range beyond.
MOST_SPOKEN = 8

TAIL_COLOURS = {name: COLOURS[index % len(COLOURS)] for index, name in enumerate(NAMES)}


def caption(kind: str, device: str = "", date: str = "", note: str = "") -> str:
    """ "measured, NVIDIA H200, 2026-11-30; medians". Raises InputError for a kind that does not exist."""
    if kind not in KINDS:
        raise unknown("kind", kind, KINDS)
    said = ", ".join(part for part in (kind, device, date) if part)
    return f"{said}; {note}" if note else said


def measured_here(note: str = "", device: str = "") -> str:
    """The caption of what this machine has just measured; `device` where another name than the platform's fits."""
    today = datetime.now().astimezone().date().isoformat()
    return caption("measured", device or describe().device_name, today, note)


def of_manifest(manifest: Manifest, note: str = "") -> str:
    """The caption of a figure drawn from a recording."""
    return caption(manifest.kind, manifest.device, manifest.date, note)


def colour(index: int) -> str:
    """The palette's colour number `index`, from the start again after the last."""
    return COLOURS[index % len(COLOURS)]


def ink_on(ground: str) -> str:
    """White or black, whichever has the higher contrast (WCAG 2) on a colour written as #rrggbb."""
    parts = [int(ground[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts)
    luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    return "#ffffff" if 1.05 / (luminance + 0.05) > (luminance + 0.05) / 0.05 else "#000000"


def finish(figure: go.Figure, title: str, said: str, x: str, y: str) -> go.Figure:
    """Title, caption below it, axes with units, legend; returns the figure."""
    # No width: a figure takes the page's, also on a narrow one.
    figure.update_layout(
        title={"text": f"{title}<br><sup>{said}</sup>", "x": 0.01, "xanchor": "left"},
        xaxis_title=x,
        yaxis_title=y,
        height=HEIGHT,
        margin={"t": 86, "l": 70, "r": 20, "b": 60},
        showlegend=any(trace.name for trace in figure.data) or None,
        font={"color": INK, "size": 13},
        paper_bgcolor=GROUND,
        plot_bgcolor=GROUND,
        hoverlabel={"font": {"color": INK}, "bgcolor": GROUND},
    )
    _label_bars(list(figure.select_traces({"type": "bar"})))
    lines = {"gridcolor": GRID, "zerolinecolor": "#999999", "linecolor": "#999999"}
    return figure.update_xaxes(**lines).update_yaxes(**lines)


def _label_bars(bars: list[go.Bar]) -> None:
    """Readable labels. Left alone, plotly writes dark grey on the palette's orange: 4.3 where AA wants 4.5. No ink is
    readable on stripes: beside hatched bars all labels stand above their bars.
    """
    striped = any(bar.text is not None and bar.marker.pattern.shape for bar in bars)
    for bar in bars:
        if striped:
            bar.update(textposition="outside", cliponaxis=False)
        if str(bar.marker.color).startswith("#"):
            bar.insidetextfont.color = ink_on(bar.marker.color)


def alt_text(figure: dict) -> str:
    """Sentences that stand for a figure (its JSON): title, caption, axes, and the numbers of each trace."""
    layout = figure.get("layout", {})
    parts = [plain(title_of(figure))] + [_axis(layout, axis) for axis in ("xaxis", "yaxis")]
    parts += dict.fromkeys(filter(None, (_numbers(trace) for trace in figure.get("data", []))))
    return ". ".join(part for part in parts if part)


def title_of(figure: dict) -> str:
    """A figure's title as plotly holds it, the caption behind <br>."""
    title = figure.get("layout", {}).get("title") or {}
    return title if isinstance(title, str) else title.get("text", "")


def _numbers(trace: dict) -> str:
    """ "replicated: a 1.2, b 3.4" for a few values, "replicated: 1.2 to 9.8" for many."""
    name = str(trace.get("name") or trace.get("type") or "values")
    flat = trace.get("orientation") == "h"
    values, labels = _values(trace.get("x" if flat else "y")), _labels(trace.get("y" if flat else "x"))
    if trace.get("type") == "heatmap":
        values, labels = [], []
    known = [value for value in values if value is not None]
    if not known:
        return f"shown: {name}"
    if len(values) <= MOST_SPOKEN and len(labels) == len(values):
        pairs = (
            f"{label} {value:.3g}" for label, value in zip(labels, values, strict=True) if value is not None
        )
        return f"{name}: {', '.join(pairs)}"
    low, high = f"{min(known):.3g}", f"{max(known):.3g}"
    return f"{name}: {low}" if low == high else f"{name}: {low} to {high}"


def _values(raw) -> list[float | None]:
    if isinstance(raw, dict):
        raw = np.frombuffer(base64.b64decode(raw["bdata"]), dtype=raw["dtype"]).tolist()
    numbers = [
        value if isinstance(value, int | float) and not isinstance(value, bool) else None
        for value in raw or []
    ]
    return [None if value is None or math.isnan(value) else value for value in numbers]


def _labels(raw) -> list[str]:
    if isinstance(raw, dict):
        return [f"{value:.6g}" for value in _values(raw) if value is not None]
    return [f"{value:.6g}" if isinstance(value, float) else str(value) for value in raw or []]


def _axis(layout: dict, axis: str) -> str:
    title = (layout.get(axis) or {}).get("title") or {}
    text = title if isinstance(title, str) else title.get("text", "")
    return f"{'Across' if axis == 'xaxis' else 'Up'}: {plain(text)}" if text else ""


def plain(text: str) -> str:
    """A title without plotly's tags."""
    for tag in ("<sup>", "</sup>", "<b>", "</b>"):
        text = text.replace(tag, "")
    return text.replace("<br>", ": ")
