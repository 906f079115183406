"""Figures of a recording in time: a step by queue, and a window with its sum and its busy time."""

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from latent_moe.lab.plots.theme import caption, colour, finish
from latent_moe.lab.traces.kernel_names import KINDS, shorten
from latent_moe.lab.traces.metrics import union_ns
from latent_moe.lab.traces.table import Trace

# More bars than this make a page slow and show nothing.
LIMIT = 400


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
    shown = rows.head(LIMIT)
    lanes = [
        _lane(shown[shown["kind"] == key], key, i, first)
        for i, key in enumerate(KINDS)
        if (shown["kind"] == key).any()
    ]
    some = f"the first {LIMIT} of {len(rows)}" if len(rows) > LIMIT else f"{len(rows)}"
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
