"""Figures of recordings: where the time of a tail goes, calls side by side, GEMM calls by T, kernels in time."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from latent_moe.lab.plots.theme import BASELINE, CANDIDATE, TAIL_COLOURS, caption, colour, finish
from latent_moe.lab.traces import metrics
from latent_moe.lab.traces.kernel_names import KINDS, shorten
from latent_moe.lab.traces.metrics import union_ns
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


# More bars than this make a page slow and show nothing.
MOST_BARS = 400


def timeline(trace: Trace, device: str, kind: str, region: str | None = None) -> go.Figure:
    """Kernels as bars in time, a row per agent and queue, coloured by kind; `region` keeps names that contain it."""
    rows = _timed(trace.table)
    if region is not None:
        rows = rows[rows["region"].astype("string").str.contains(region, regex=False, na=False)]
    first = int(rows["start_ns"].min()) if len(rows) else 0
    title = f"Timeline of {region or 'the recording'}"
    return _drawn(rows, first, title, device, kind)


def window(
    table: pd.DataFrame,
    device: str,
    kind: str,
    start_us: float = 0.0,
    length_us: float = 60.0,
    contains: str = "",
) -> go.Figure:
    """The kernels that run in a window, cut at its ends; the title has their sum and the busy time (the union on each
    device, added up). `start_us` counts from the recording's first kernel, `contains` keeps kernels by a part of their name.
    """
    rows = _timed(table)
    first = int(rows["start_ns"].min()) if len(rows) else 0
    begin = first + int(start_us * 1e3)
    rows = _cut(rows, begin, begin + int(length_us * 1e3))
    rows = rows[rows["name"].astype("string").str.contains(contains, case=False, regex=False, na=False)]
    total, busy = rows["dur_ns"].sum() / 1e3, _busy_ns(rows) / 1e3
    title = f"{len(rows)} kernels: {total:.1f} us added up, {busy:.1f} us busy"
    shown = f"{start_us:.4g} to {start_us + length_us:.4g} us" + (
        f", names with {contains!r}" if contains else ""
    )
    return _drawn(rows, first, title, device, kind, f"{shown}; ")


def step_of(trace: Trace) -> str | None:
    """The second named step of a recording (the first may be unlike the others), None where no region is named."""
    names = [str(name) for name in trace.table["region"].dropna().unique()]
    return next((name for name in names if "step=1" in name), names[0] if names else None)


def _timed(table: pd.DataFrame) -> pd.DataFrame:
    return table[table["start_ns"].notna() & table["dur_ns"].notna()].sort_values("start_ns")


def _cut(rows: pd.DataFrame, begin: int, end: int) -> pd.DataFrame:
    starts = rows["start_ns"].astype("int64")
    ends = starts + rows["dur_ns"].astype("int64")
    inside = (starts < end) & (ends > begin)
    starts, ends = starts[inside].clip(lower=begin), ends[inside].clip(upper=end)
    return rows[inside].assign(start_ns=starts, dur_ns=ends - starts)


def _busy_ns(rows: pd.DataFrame) -> int:
    devices = rows.groupby([rows["process"].astype("string"), rows["agent"].astype("string")], dropna=False)
    return sum(_union(mine) for _, mine in devices)


def _union(rows: pd.DataFrame) -> int:
    starts = rows["start_ns"].to_numpy(np.int64)
    return union_ns(starts, starts + rows["dur_ns"].to_numpy(np.int64))


def _drawn(rows: pd.DataFrame, first: int, title: str, device: str, kind: str, note: str = "") -> go.Figure:
    shown = rows.head(MOST_BARS)
    lanes = [
        _lane(shown[shown["kind"] == key], key, i, first)
        for i, key in enumerate(KINDS)
        if (shown["kind"] == key).any()
    ]
    some = f"the first {MOST_BARS} of {len(rows)}" if len(rows) > MOST_BARS else f"{len(rows)}"
    said = caption(kind, device, note=f"{note}{some} kernels, a row for each device and queue")
    figure = go.Figure(lanes).update_layout(barmode="overlay")
    figure = finish(figure, title, said, "us since the first kernel", "device, queue")
    return figure.update_yaxes(type="category", categoryorder="category descending")


def _lane(rows: pd.DataFrame, kind: str, index: int, first: int) -> go.Bar:
    names = [str(name) for name in rows["name"]]
    return go.Bar(
        name=kind,
        orientation="h",
        y=[_place(row) for row in zip(rows["rank"], rows["agent"], rows["queue"], strict=True)],
        x=[int(ns) / 1e3 for ns in rows["dur_ns"]],
        base=[(int(ns) - first) / 1e3 for ns in rows["start_ns"]],
        marker_color=colour(index),
        text=[shorten(name) for name in names],
        textposition="none",
        customdata=names,
        hovertemplate="%{text}<br>%{x:.1f} us<br>%{customdata}<extra></extra>",
    )


def _place(row: tuple) -> str:
    rank, agent, queue = row
    return f"{agent}, {queue}" if pd.isna(rank) else f"rank {rank}, {agent}, {queue}"
