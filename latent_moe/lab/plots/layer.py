"""Figures of one layer: what its parts hold and compute, what a tail's work is on one rank, where its time goes."""

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from latent_moe.config import KIMI_K3, LatentMoEConfig
from latent_moe.lab.cost.layer_work import layer_parts, tail_work
from latent_moe.lab.plots.theme import BASELINE, CANDIDATE, TAIL_COLOURS, caption, colour, finish


def dense_and_latent(config: LatentMoEConfig = KIMI_K3, name: str = "Kimi-K3's sizes") -> go.Figure:
    """Stacked bars: FLOP per token of the same layer with experts on the hidden size and on the latent."""
    layers = {"experts on H": config.replace(latent_size=None), "experts on L": config}
    tables = {label: {p.name: p for p in layer_parts(one)} for label, one in layers.items()}
    names = [part.name for part in layer_parts(config)]
    bars = [
        go.Bar(
            name=part,
            x=list(tables),
            y=[t[part].flop_per_token / 1e9 if part in t else 0 for t in tables.values()],
            marker_color=colour(i),
        )
        for i, part in enumerate(names)
    ]
    figure = go.Figure(bars).update_layout(barmode="stack")
    said = caption("modelled", note=f"2 FLOP per active parameter, {name}")
    return finish(figure, "What one token costs in one layer", said, "layer", "GFLOP per token")


def work_of_a_rank(tokens: int = 64, tp: int = 8, config: LatentMoEConfig = KIMI_K3) -> go.Figure:
    """Three panels, replicated beside column_parallel: bytes of W, FLOP, bytes given to all-reduces."""
    rows = tail_work(config, tokens, tp)
    panels = {
        "W read, MB": [row.weight_bytes / 1e6 for row in rows],
        "GEMM, GFLOP": [row.flop / 1e9 for row in rows],
        "all-reduced, MB": [row.all_reduce_bytes / 1e6 for row in rows],
    }
    figure = make_subplots(rows=1, cols=3, subplot_titles=list(panels), horizontal_spacing=0.09)
    for place, values in enumerate(panels.values(), 1):
        for row, value, shade in zip(rows, values, (BASELINE, CANDIDATE), strict=True):
            bar = go.Bar(
                name=row.tail,
                x=[row.tail],
                y=[value],
                marker_color=shade,
                showlegend=place == 1,
                text=[f"{value:.3g}"],
                textposition="auto",
            )
            figure.add_trace(bar, 1, place)
    said = caption(
        "modelled", note=f"bf16, counted from the shapes: H = {config.hidden_size}, L = {config.latent_size}"
    )
    figure = finish(figure, f"One rank, one layer's tail: T = {tokens}, tp = {tp}", said, "", "")
    # The panels' titles carry the units; the tails' names stand in the legend.
    return figure.update_xaxes(showticklabels=False, title="tail").update_layout(margin={"t": 120})


def part_times(rows: Sequence[Mapping], device: str, date: str, note: str) -> go.Figure:
    """Bars: the measured time of each part of a layer; rows of {"part", "median_us", "p10_us", "p90_us"}."""
    middle = [row["median_us"] for row in rows]
    bar = go.Bar(
        name="median, 10 to 90 %",
        x=[row["part"] for row in rows],
        y=middle,
        marker_color=BASELINE,
        error_y={
            "type": "data",
            "array": [row["p90_us"] - row["median_us"] for row in rows],
            "arrayminus": [row["median_us"] - row["p10_us"] for row in rows],
        },
    )
    said = caption("measured", device, date, note)
    return finish(go.Figure(bar), "Where one layer's time goes, one rank", said, "part", "us")


def against_tokens(
    rows: Sequence[Mapping], title: str, said: str, y: str = "us", key: str = "tail", value: str = "median_us"
) -> go.Figure:
    """Lines on two logarithmic axes: one per `key`, `value` against tokens."""
    names = list(dict.fromkeys(row[key] for row in rows))
    marks = ("circle", "square", "diamond", "x", "triangle-up", "cross")
    lines = [
        go.Scatter(
            name=name,
            x=[row["tokens"] for row in rows if row[key] == name],
            y=[row[value] for row in rows if row[key] == name],
            mode="lines+markers",
            line_color=TAIL_COLOURS.get(name, colour(i)),
            marker={"symbol": marks[i % len(marks)], "size": 8},
        )
        for i, name in enumerate(names)
    ]
    figure = finish(go.Figure(lines), title, said, "T, tokens in the step", y)
    return figure.update_xaxes(type="log", dtick="D2").update_yaxes(type="log", dtick="D2")
