"""Figures of recordings: where a tail's time goes, calls side by side, GEMM calls by T."""

from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go

from latent_moe.lab.plots.theme import BASELINE, CANDIDATE, TAIL_COLOURS, caption, colour, finish
from latent_moe.lab.traces import metrics
from latent_moe.lab.traces.kernel_names import KINDS
from latent_moe.lab.traces.table import Trace


def stacked_kinds(arms: Mapping[str, Trace], device: str, kind: str = "measured") -> go.Figure:
    """Stacked bars: kernel time of each arm by kind, sums over its processes, kinds in one order."""
    tables = {
        name: {row.key: row for row in metrics.group(trace.kernels, "kind")} for name, trace in arms.items()
    }
    present = [key for key in KINDS if any(key in table for table in tables.values())]
    bars = [
        go.Bar(
            name=key,
            x=list(tables),
            y=[table[key].total_ns / 1e6 if key in table else 0 for table in tables.values()],
            marker={
                "color": colour(KINDS.index(key)),
                "pattern": {"shape": "/" if KINDS.index(key) >= 8 else ""},
            },
        )
        for key in present
    ]
    figure = go.Figure(bars).update_layout(barmode="stack")
    said = caption(kind, device, note="sum of kernel times over all ranks and steps of the recording")
    return finish(figure, "Where the time of each tail goes", said, "recording", "ms, sum")


def per_call(rows: Mapping[str, Mapping[str, Any]], device: str, kind: str = "measured") -> go.Figure:
    """Grouped bars: median time per call and kind of both arms; `rows` is a comparison's per_call."""
    kinds = list(rows)
    bars = [
        go.Bar(
            name=side,
            x=kinds,
            y=[_us(rows[key][f"{side}_median_ns"]) for key in kinds],
            marker={"color": shade, "pattern": {"shape": shape}},
        )
        for side, shade, shape in (("baseline", BASELINE, ""), ("candidate", CANDIDATE, "/"))
    ]
    said = caption(kind, device, note="median time of a call, all T together; a missing bar: no such calls")
    title = "Per call: baseline beside candidate"
    return _logarithmic(finish(go.Figure(bars), title, said, "kind of kernel", "us per call"))


def gemm_calls(arms: Mapping[str, Trace], device: str, kind: str = "measured") -> go.Figure:
    """Grouped bars: median time of a GEMM call at each T of the recordings, with the number of calls on the bar.

    T is the M that a kernel or its region names; GEMMs without one are left out.
    """
    medians = {name: gemm_medians(trace) for name, trace in arms.items()}
    tokens = sorted({t for found in medians.values() for t in found.index})
    bars = [
        go.Bar(
            name=name,
            x=[str(t) for t in tokens],
            y=[_us(found["median"].get(t)) for t in tokens],
            text=[f"{int(found['count'].get(t, 0))} calls" for t in tokens],
            marker={"color": TAIL_COLOURS.get(name, colour(i)), "pattern": {"shape": "/" if i else ""}},
        )
        for i, (name, found) in enumerate(medians.items())
    ]
    said = caption(kind, device, note="median of a GEMM call over all ranks and steps")
    figure = finish(
        go.Figure(bars), "The GEMM alone, at each T", said, "T, tokens in the step", "us per call"
    )
    return _logarithmic(figure).update_xaxes(type="category")


def gemm_medians(trace: Trace):
    """DataFrame by T (the GEMM's M): `median` in ns and `count` of the GEMM calls with a time."""
    table = trace.table
    rows = table[(table["kind"] == "gemm") & table["M"].notna()]
    return rows.groupby(rows["M"].astype(int))["dur_ns"].agg(["median", "count"])


def _us(ns: float | None) -> float | None:
    return None if ns is None else ns / 1e3


def _logarithmic(figure: go.Figure) -> go.Figure:
    return figure.update_yaxes(type="log", dtick="D2")
