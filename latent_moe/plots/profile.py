"""Figures of recordings: GEMM time against T with its ceiling, where a tail's time goes, calls side by side, a timeline."""

from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

import plotly.graph_objects as go

from latent_moe.capture.calibrate import Calibration
from latent_moe.config import KIMI_K3
from latent_moe.cost import hardware as machines
from latent_moe.cost.gemm import roofline_us
from latent_moe.plots.layer import against_tokens
from latent_moe.plots.theme import BASELINE, CANDIDATE, TAIL_COLOURS, caption, colour, finish
from latent_moe.traces import measure
from latent_moe.traces.names import KINDS, shorten
from latent_moe.traces.table import Trace


def gemm_roofline(timed: Sequence[Mapping], ceilings: Sequence[Mapping], machine: Calibration) -> go.Figure:
    """Measured medians of both GEMMs with the ceiling of each as a dashed line."""
    said = caption(
        "measured",
        machine.device,
        str(date.today()),
        "dashed: ceiling modelled from this machine's copy and GEMM rates",
    )
    figure = against_tokens(timed, "The up-projection's GEMM against T", said)
    for tail in dict.fromkeys(row["tail"] for row in ceilings):
        mine = [row for row in ceilings if row["tail"] == tail]
        x, y = [row["tokens"] for row in mine], [row["ceiling_us"] for row in mine]
        line = {"dash": "dash", "color": TAIL_COLOURS[tail]}
        figure.add_trace(go.Scatter(name=f"ceiling, {tail}", x=x, y=y, mode="lines", line=line))
    return figure


def ceiling_of(tp: int = 8, hardware: str = "mi355x") -> go.Figure:
    """The roofline time of Kimi-K3's whole and sharded GEMM on hardware by its data sheet."""
    machine = machines.get(hardware)
    h, k = KIMI_K3.hidden_size, KIMI_K3.expert_input_size
    rows = [
        {"tail": tail, "tokens": 2**i, "us": roofline_us(2**i, n, k, machine)}
        for tail, n in (("replicated", h), ("column_parallel", h // tp))
        for i in range(15)
    ]
    said = caption("modelled", machine.name, note=f"roofline, bf16, tp = {tp}")
    return against_tokens(rows, "The GEMM's modelled time elsewhere", said, value="us")


def stacked_kinds(arms: Mapping[str, Trace], device: str, kind: str = "measured") -> go.Figure:
    """Stacked bars: kernel time of each arm by kind, sums over its processes, kinds in one order."""
    tables = {
        name: {row.key: row for row in measure.group(trace.kernels, "kind")} for name, trace in arms.items()
    }
    present = [key for key in KINDS if any(key in table for table in tables.values())]
    bars = [
        go.Bar(
            name=key,
            x=list(tables),
            y=[table[key].total_ns / 1e6 if key in table else 0 for table in tables.values()],
            marker={"color": colour(i), "pattern": {"shape": "/" if i >= 8 else ""}},
        )
        for i, key in enumerate(present)
    ]
    figure = go.Figure(bars).update_layout(barmode="stack")
    said = caption(kind, device, note="sum of kernel times over all ranks and steps of the recording")
    return finish(figure, "Where the time of each tail goes", said, "recording", "ms, sum")


def per_call(rows: Mapping[str, Mapping[str, Any]], device: str, kind: str = "measured") -> go.Figure:
    """Grouped bars: mean time per call and kind of both arms; `rows` is a comparison's per_call."""
    kinds = list(rows)
    sides = (("baseline", BASELINE), ("candidate", CANDIDATE))
    bars = [
        go.Bar(
            name=side,
            x=kinds,
            y=[(rows[key][f"{side}_ns"] or 0) / 1e3 or None for key in kinds],
            marker_color=shade,
        )
        for side, shade in sides
    ]
    said = caption(kind, device, note="mean time of a call; a missing bar: no such calls")
    figure = finish(
        go.Figure(bars), "Per call: baseline beside candidate", said, "kind of kernel", "us per call"
    )
    return figure.update_yaxes(type="log")


def timeline(trace: Trace, device: str, kind: str, region: str | None = None, limit: int = 400) -> go.Figure:
    """Kernels as bars in time, a row per agent and queue, coloured by kind; `region` keeps names that contain it."""
    table = trace.table
    rows = table[table["start_ns"].notna()]
    if region is not None:
        rows = rows[rows["region"].astype("string").str.contains(region, regex=False, na=False)]
    rows = rows.sort_values("start_ns").head(limit)
    first = int(rows["start_ns"].min()) if len(rows) else 0
    figure = go.Figure(
        [
            _lane(rows[rows["kind"] == key], key, i, first)
            for i, key in enumerate(KINDS)
            if (rows["kind"] == key).any()
        ]
    )
    said = caption(
        kind, device, note=f"{len(rows)} kernels, a row for each agent and queue; hover for the full name"
    )
    return finish(
        figure.update_layout(barmode="overlay"),
        f"Timeline of {region or 'the recording'}",
        said,
        "us since the first kernel",
        "agent, queue",
    )


def _lane(rows, kind: str, index: int, first: int) -> go.Bar:
    names = [str(name) for name in rows["name"]]
    return go.Bar(
        name=kind,
        orientation="h",
        y=[f"{agent}, {queue}" for agent, queue in zip(rows["agent"], rows["queue"], strict=True)],
        x=[int(ns) / 1e3 for ns in rows["dur_ns"]],
        base=[(int(ns) - first) / 1e3 for ns in rows["start_ns"]],
        marker_color=colour(index),
        text=[shorten(name) for name in names],
        textposition="none",
        customdata=names,
        hovertemplate="%{text}<br>%{x:.1f} us<br>%{customdata}<extra></extra>",
    )
