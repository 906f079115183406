"""Figures of one layer and of the GEMM of its up-projection: work, time against T, the roofline; README's figure too.

T tokens, H hidden, L latent, N columns (H replicated, H/tp sharded). `python -m latent_moe.lab.plots.layer_plots` writes
profiles/figures/tail_time.svg.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from latent_moe.config import KIMI_K3, LatentMoEConfig
from latent_moe.lab.cost import hardware as machines
from latent_moe.lab.cost.gemm import BYTES, published, roofline_us
from latent_moe.lab.cost.hardware import Hardware
from latent_moe.lab.cost.terms import layer_parts, tail_work
from latent_moe.lab.microbench.calibrate import Calibration
from latent_moe.lab.plots.theme import (
    BASELINE,
    CANDIDATE,
    INK,
    TAIL_COLOURS,
    caption,
    colour,
    finish,
    measured_here,
    of_manifest,
)
from latent_moe.lab.recordings import load_manifest, profiles_dir


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


def part_times(rows: Sequence[Mapping], note: str) -> go.Figure:
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
    said = measured_here(note)
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


H, L = KIMI_K3.hidden_size, KIMI_K3.expert_input_size
POWERS_OF_TWO = tuple(2**i for i in range(15))
_TAIL_SYMBOLS = {"replicated": "circle", "column_parallel": "square"}


def gemm_roofline(
    timed: Sequence[Mapping], ceilings: Sequence[Mapping], machine: Calibration, device: str = ""
) -> go.Figure:
    """Measured medians of both GEMMs, and the roofline's time for each as a dashed line."""
    note = f"medians, {machine.gemm_dtype}; dashed: modelled from this machine's copy and {machine.gemm_dtype} GEMM rates"
    said = measured_here(note, device or machine.device)
    figure = against_tokens(timed, "The up-projection's GEMM against T", said)
    for tail in dict.fromkeys(row["tail"] for row in ceilings):
        mine = [row for row in ceilings if row["tail"] == tail]
        x, y = [row["tokens"] for row in mine], [row["ceiling_us"] for row in mine]
        line = {"dash": "dash", "color": TAIL_COLOURS[tail]}
        figure.add_trace(go.Scatter(name=f"roofline, {tail}", x=x, y=y, mode="lines", line=line))
    return figure


def roofline(tokens: int = 64, tp: int = 8, hardware: str = "mi355x") -> go.Figure:
    """Two panels for Kimi-K3's whole and sharded GEMM at every T, with `tokens` marked: time, and FLOP rate against intensity."""
    machine = machines.get(hardware)
    titles = ("time against T", "FLOP rate against FLOP per byte")
    figure = make_subplots(rows=1, cols=2, subplot_titles=titles, horizontal_spacing=0.13)
    for tail, n in (("replicated", H), ("column_parallel", H // tp)):
        _gemm_lines(figure, tail, n, tokens, machine)
    _published_dots(figure, machine)
    _roof(figure, machine)
    times = [roofline_us(tokens, n, L, machine) for n in (H, H // tp)]
    title = f"T = {tokens}, tp = {tp}: {times[0]:.1f} us whole, {times[1]:.1f} us sharded, {times[0] / times[1]:.1f} times faster"
    dots = "; open dots published (ROCm/aiter)" if machine.gemm_times else ""
    said = caption("modelled", machine.name, note=f"roofline and one launch, bf16{dots}")
    finish(figure, title, said, "T, tokens in the step", "us")
    return _axes(figure)


def _gemm_lines(figure: go.Figure, tail: str, n: int, chosen: int, machine: Hardware) -> None:
    times = [roofline_us(t, n, L, machine) for t in POWERS_OF_TWO]
    flop, moved = _flop_and_bytes(np.array(POWERS_OF_TWO), n)
    place = POWERS_OF_TWO.index(chosen)
    for column, x, y in ((1, list(POWERS_OF_TWO), times), (2, flop / moved, flop / np.array(times) / 1e6)):
        look = {"line_color": TAIL_COLOURS[tail], "legendgroup": tail, "showlegend": column == 1}
        line = go.Scatter(name=f"{tail}, N = {n}", x=x, y=y, mode="lines+markers", marker_size=5, **look)
        figure.add_trace(line, 1, column)
        mark = {"size": 15, "symbol": _TAIL_SYMBOLS[tail], "line": {"color": INK, "width": 2}}
        here = go.Scatter(
            name=f"{tail} at T = {chosen}",
            x=[x[place]],
            y=[y[place]],
            mode="markers",
            marker=mark | {"color": TAIL_COLOURS[tail]},
            legendgroup=tail,
            showlegend=False,
        )
        figure.add_trace(here, 1, column)


def _flop_and_bytes(tokens: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """(FLOP, bytes) of [T, L] x [L, N] in bf16."""
    return 2.0 * tokens * n * L, BYTES * (tokens * (n + L) + n * L)


def _published_dots(figure: go.Figure, machine: Hardware) -> None:
    if machine.gemm_times is None:
        return
    points = published(machine.gemm_times).times.get((H, L), {})
    marker = {"symbol": "circle-open", "size": 8, "color": INK}
    name = f"published, N = {H}"
    times = go.Scatter(name=name, x=list(points), y=list(points.values()), mode="markers", marker=marker)
    figure.add_trace(times, 1, 1)


def _roof(figure: go.Figure, machine: Hardware) -> None:
    """The roof itself: what kernels reach of the bandwidth and of the FLOP rate."""
    bandwidth = machine.gemm_bandwidth_efficiency * machine.hbm_tb_per_s
    rate = machine.gemm_efficiency * machine.peak_bf16_tflops
    corner = rate / bandwidth
    x = [0.8, corner, 4e3]
    y = [bandwidth * x[0], rate, rate]
    roof = go.Scatter(name="roofline", x=x, y=y, mode="lines", line={"color": INK, "dash": "dash"})
    figure.add_trace(roof, 1, 2)


def _axes(figure: go.Figure) -> go.Figure:
    figure.update_xaxes(type="log", dtick=1).update_yaxes(type="log", dtick=1)
    figure.update_xaxes(title="FLOP per byte moved", row=1, col=2)
    figure.update_yaxes(title="TFLOP/s", row=1, col=2)
    legend = {"orientation": "h", "y": -0.22}
    return figure.update_layout(margin={"t": 112, "b": 110}, legend=legend, height=480)


README_RECORDING = "h200_tp8_shapes"
README_TAILS = ("replicated", "column_parallel", "fused")


def tail_time(folder: Path, tails: Sequence[str] = README_TAILS) -> go.Figure:
    """Median time against T of the recording's tails, graph-captured; tails that it lacks are left out."""
    table = pd.read_csv(folder / "tails.csv")
    rows = table[(table["mode"] == "graph") & table["tail"].isin(tails)]
    tp = "/".join(map(str, sorted(rows["tp"].unique())))
    said = of_manifest(
        load_manifest(folder), f"shapes of tp = {tp}, compute only (no collectives), graph-captured, medians"
    )
    records = [dict(zip(rows.columns, values, strict=True)) for values in rows.itertuples(index=False)]
    return against_tokens(records, "The tail of one Kimi-K3 layer", said, y="us per layer")


def main(out: Path | None = None) -> Path:
    """Draw README's figure: write tail_time.svg and return its path; `out` defaults to profiles/figures."""
    folder = out or profiles_dir() / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "tail_time.svg"
    tail_time(profiles_dir() / README_RECORDING).write_image(path, width=860, height=440)
    return path


if __name__ == "__main__":
    print(main(Path(sys.argv[1]) if len(sys.argv) > 1 else None))
