"""Figures of served runs, from the tidy table of serving.render.frame: deltas with intervals, latency against load."""

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from latent_moe.plots.theme import BASELINE, CANDIDATE, caption, colour, finish

LATENCIES = {"mean_ttft_ms": "mean TTFT, ms", "mean_tpot_ms": "mean TPOT, ms"}


def _said(table: pd.DataFrame, note: str) -> str:
    row = table.iloc[0]
    return caption(row["kind"], row["device"] or "", note=note)


def deltas(table: pd.DataFrame) -> go.Figure:
    """Change of every metric at every concurrency, with its 95 % interval where there is one."""
    known = table[table["delta_pct"].notna()]
    points = []
    for index, (concurrency, rows) in enumerate(known.groupby("concurrency")):
        ends = {
            "type": "data",
            "symmetric": False,
            "array": (rows["ci95_high_pct"] - rows["delta_pct"]).tolist(),
            "arrayminus": (rows["delta_pct"] - rows["ci95_low_pct"]).tolist(),
        }
        points.append(
            go.Scatter(
                name=f"concurrency {int(concurrency)}",
                x=rows["label"],
                y=rows["delta_pct"],
                mode="markers",
                marker={"size": 10, "color": colour(index), "symbol": index},
                error_y=ends if rows["ci95_low_pct"].notna().any() else None,
                text=rows["verdict"],
                hovertemplate="%{x}: %{y:.2f} % (%{text})<extra></extra>",
            )
        )
    note = "bars: 95 % interval of paired runs" if known["ci95_low_pct"].notna().any() else "no interval"
    figure = go.Figure(points).add_hline(y=0, line={"dash": "dot", "color": "#666666"})
    title = "Candidate against baseline"
    return finish(figure.update_layout(scattermode="group"), title, _said(table, note), "metric", "change, %")


def latency(table: pd.DataFrame) -> go.Figure:
    """TTFT and TPOT of both arms against the concurrency, two panels."""
    figure = make_subplots(rows=1, cols=2, subplot_titles=list(LATENCIES.values()), horizontal_spacing=0.12)
    arms = (("baseline", BASELINE, "circle"), ("candidate", CANDIDATE, "diamond"))
    for place, metric in enumerate(LATENCIES, 1):
        rows = table[table["metric"] == metric].sort_values("concurrency")
        for side, shade, symbol in arms:
            line = go.Scatter(
                name=rows[f"{side}_arm"].iloc[0] if len(rows) else side,
                x=rows["concurrency"],
                y=rows[side],
                mode="lines+markers",
                marker={"color": shade, "symbol": symbol, "size": 9},
                line={"dash": "solid" if side == "baseline" else "dash"},
                showlegend=place == 1,
            )
            figure.add_trace(line, 1, place)
    figure = finish(figure, "Latency against load", _said(table, "means"), "", "ms")
    figure.update_yaxes(rangemode="tozero", title="ms")
    return figure.update_xaxes(
        title="requests in flight", type="log", tickvals=sorted(set(table["concurrency"]))
    )


def in_flight(facts: pd.DataFrame, kind: str, device: str = "") -> go.Figure:
    """How far Little's law falls short of the concurrency, per arm; `facts` has concurrency, config, drain_pct."""
    bars = [
        go.Bar(
            name=arm,
            x=rows["concurrency"].astype(str),
            y=rows["drain_pct"],
            marker={"color": shade, "pattern": {"shape": shape}},
        )
        for (arm, rows), shade, shape in zip(
            facts.groupby("config"), (BASELINE, CANDIDATE), ("", "/"), strict=False
        )
    ]
    said = caption(kind, device, note="1 - request rate x request time / concurrency")
    return finish(go.Figure(bars), "Little's law: the drain", said, "concurrency", "short of it, %")
