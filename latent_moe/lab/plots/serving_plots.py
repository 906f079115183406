"""Figures of throughput: changes with their intervals, both arms, Little's law, and how many pairs a plan needs."""

import math
from typing import Any

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from latent_moe.lab.plots.theme import BASELINE, CANDIDATE, INK, caption, colour, finish
from latent_moe.lab.results.distributions import t_quantile
from latent_moe.lab.results.stats import CONFIDENCE, t_power

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


MOST_PAIRS = 60


def interval_width(pairs: int = 4, sd_pct: float = 2.0, effect_pct: float = 3.0) -> go.Figure:
    """Two panels against the number of pairs, with `pairs` marked: half the width of the 95 % paired t interval, and the
    chance that it excludes zero when the effect is real.

    `sd_pct` is the standard deviation of a pair's change, percentage points; all from Student's t, nothing is measured.
    """
    numbers = list(range(2, max(MOST_PAIRS, pairs) + 1))
    half = [_half_width_pct(n, sd_pct) for n in numbers]
    spread, effect = math.log1p(sd_pct / 100), math.log1p(effect_pct / 100)
    chance = [100 * t_power(effect, spread, n) for n in numbers]
    titles = ("half the 95 % interval", f"chance to see {effect_pct:g} %")
    figure = make_subplots(rows=1, cols=2, subplot_titles=titles, horizontal_spacing=0.12)
    place = numbers.index(pairs)
    for column, (name, values, shade) in enumerate(
        (("half width", half, BASELINE), ("chance", chance, CANDIDATE)), 1
    ):
        line = go.Scatter(name=name, x=numbers, y=values, line_color=shade)
        figure.add_trace(line, 1, column)
        mark = {"size": 14, "color": shade, "line": {"color": INK, "width": 2}}
        here = go.Scatter(x=[pairs], y=[values[place]], mode="markers", marker=mark, showlegend=False)
        figure.add_trace(here, 1, column)
    figure.add_hline(y=effect_pct, line_dash="dash", annotation_text=f"{effect_pct:g} %", row=1, col=1)
    figure.add_hline(y=80, line_dash="dash", annotation_text="80 %", row=1, col=2)
    title = f"{pairs} pairs that spread by {sd_pct:.2g} %: ± {half[place]:.2g} points"
    said = caption("modelled", note="Student's t; a pair is one run of each arm, restarted between")
    finish(figure, title, said, "pairs", "points")
    figure.update_xaxes(title="pairs", zeroline=False).update_yaxes(title="%", range=[0, 105], row=1, col=2)
    # Three pairs and fewer reach beyond any use: the axis shows what can be planned with.
    return figure.update_yaxes(range=[0, max(4 * effect_pct, 1.1 * half[place])], row=1, col=1).update_layout(
        margin={"t": 112}
    )


def _half_width_pct(pairs: int, sd_pct: float) -> float:
    return t_quantile((1 + CONFIDENCE) / 2, pairs - 1) * sd_pct / math.sqrt(pairs)


def drain(facts: pd.DataFrame, kind: str, device: str = "") -> go.Figure:
    """Bars per concurrency and arm; `facts` holds cost.table_facts.RowFacts: concurrency, arm, drain_pct."""
    arms = facts.groupby("arm", sort=False)
    bars = [
        go.Bar(
            name=arm,
            x=rows["concurrency"].astype(str),
            y=rows["drain_pct"],
            marker={"color": shade, "pattern": {"shape": shape}},
        )
        for (arm, rows), shade, shape in zip(arms, (BASELINE, CANDIDATE), ("", "/"), strict=False)
    ]
    said = caption(kind, device, note="1 - request rate x request time / concurrency")
    figure = finish(
        go.Figure(bars), "Little's law: the drain", said, "concurrency", "short of the concurrency, %"
    )
    return figure.update_xaxes(type="category")
