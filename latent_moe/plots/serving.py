"""Figures of throughput tables: deltas with their intervals, a metric against concurrency for both arms."""

from typing import Any

import plotly.graph_objects as go

from latent_moe.plots.theme import BASELINE, CANDIDATE, INK, caption, colour, finish

SHOWN = ("total_tok_per_s", "mean_ttft_ms", "mean_tpot_ms")
_SHIFT = 0.12


def deltas(frame: Any, metrics: tuple[str, ...] = SHOWN) -> go.Figure:
    """Change of each metric against concurrency with its 95 % interval; `frame` is what `serving.render.frame` gives."""
    cells = sorted(frame["concurrency"].dropna().unique())
    lines = []
    for i, metric in enumerate(metrics):
        rows = frame[(frame["metric"] == metric) & frame["delta_pct"].notna()]
        lines.append(
            go.Scatter(
                name=metric,
                mode="markers",
                x=[cells.index(c) + (i - 1) * _SHIFT for c in rows["concurrency"]],
                y=rows["delta_pct"].tolist(),
                marker={"color": colour(i), "size": 10, "symbol": ("circle", "square", "diamond")[i % 3]},
                error_y={
                    "type": "data",
                    "array": (rows["ci95_high_pct"] - rows["delta_pct"]).tolist(),
                    "arrayminus": (rows["delta_pct"] - rows["ci95_low_pct"]).tolist(),
                },
            )
        )
    figure = finish(go.Figure(lines), "Change of the candidate", _said(frame), "concurrency", "change, %")
    figure.add_hline(y=0, line_color=INK, line_width=1)
    return figure.update_xaxes(tickvals=list(range(len(cells))), ticktext=[f"{c:g}" for c in cells])


def both_arms(frame: Any, metric: str = "mean_ttft_ms") -> go.Figure:
    """One metric against concurrency, a line for each arm."""
    rows = frame[frame["metric"] == metric].sort_values("concurrency")
    first = rows.iloc[0]
    lines = [
        go.Scatter(
            name=first[f"{side}_arm"],
            x=rows["concurrency"].tolist(),
            y=rows[side].tolist(),
            mode="lines+markers",
            line_color=shade,
            marker={"symbol": mark, "size": 9},
        )
        for side, shade, mark in (("baseline", BASELINE, "circle"), ("candidate", CANDIDATE, "square"))
    ]
    figure = finish(
        go.Figure(lines), first["label"], _said(frame), "concurrency", f"{metric}, {first['unit']}"
    )
    return figure.update_xaxes(type="log", dtick="D2")


def _said(frame: Any) -> str:
    first = frame.iloc[0]
    has_interval = frame["ci95_low_pct"].notna().any()
    note = "bars: 95 % intervals from paired runs" if has_interval else "one value an arm: no interval"
    # Numbers of several kinds are named one after another.
    return (
        f"{first['kind']}, {first['device']}; {note}"
        if "," in first["kind"]
        else caption(first["kind"], first["device"], note=note)
    )
