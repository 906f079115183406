"""Figures of throughput tables: deltas with their intervals, a metric against concurrency for both arms."""

from typing import Any

import plotly.graph_objects as go

from latent_moe.lab.plots.theme import BASELINE, CANDIDATE, INK, caption, colour, finish

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
    title = f"Change: {frame.iloc[0]['candidate_arm']} against {frame.iloc[0]['baseline_arm']}"
    axis = "concurrency, requests in flight"
    figure = finish(go.Figure(lines), title, _said(frame, _intervals(frame)), axis, "change, %")
    figure.add_hline(y=0, line_color=INK, line_width=1)
    places = {"tickvals": list(range(len(cells))), "ticktext": [f"{c:g}" for c in cells]}
    return figure.update_xaxes(zeroline=False, **places)


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
    title = f"{first['label']} of both arms"
    figure = finish(
        go.Figure(lines), title, _said(frame, _means(rows)), "concurrency, requests in flight", first["label"]
    )
    cells = rows["concurrency"].tolist()
    figure.update_xaxes(type="log", tickvals=cells, ticktext=[f"{c:g}" for c in cells])
    return figure.update_yaxes(rangemode="tozero")


def _intervals(frame: Any) -> str:
    known = frame["ci95_low_pct"].notna().any()
    return "bars: 95 % intervals from paired runs" if known else "one value an arm: no interval"


def _means(frame: Any) -> str:
    pairs = int(frame["pairs"].max() or 0)
    return f"geometric means over {pairs} pairs" if pairs > 1 else "one value an arm"


def _said(frame: Any, note: str) -> str:
    first = frame.iloc[0]
    # Numbers of several kinds are named one after another.
    if "," in first["kind"]:
        return f"{first['kind']}, {first['device']}; {note}"
    return caption(first["kind"], first["device"], note=note)
