"""Figures of the up-projection's GEMM under the roofline: time against T, and arithmetic intensity against FLOP rate.

T tokens, H hidden, L latent, N columns (H replicated, H/tp sharded).
"""

from collections.abc import Mapping, Sequence
from datetime import date

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from latent_moe.config import KIMI_K3
from latent_moe.lab.cost import hardware as machines
from latent_moe.lab.cost.gemm import BYTES, published, roofline_us
from latent_moe.lab.cost.hardware import Hardware
from latent_moe.lab.microbench.calibrate import Calibration
from latent_moe.lab.plots.layer import against_tokens
from latent_moe.lab.plots.theme import INK, TAIL_COLOURS, caption, finish

H, L = KIMI_K3.hidden_size, KIMI_K3.expert_input_size
TOKENS = tuple(2**i for i in range(15))
_MARKS = {"replicated": "circle", "column_parallel": "square"}


def gemm_roofline(
    timed: Sequence[Mapping], ceilings: Sequence[Mapping], machine: Calibration, device: str = ""
) -> go.Figure:
    """Measured medians of both GEMMs, and the roofline's time for each as a dashed line."""
    note = f"medians, {machine.gemm_dtype}; dashed: roofline modelled from this machine's copy and GEMM rates"
    said = caption("measured", device or machine.device, str(date.today()), note)
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
    times = [roofline_us(t, n, L, machine) for t in TOKENS]
    flop, moved = _work(np.array(TOKENS), n)
    place = TOKENS.index(chosen)
    for column, x, y in ((1, list(TOKENS), times), (2, flop / moved, flop / np.array(times) / 1e6)):
        look = {"line_color": TAIL_COLOURS[tail], "legendgroup": tail, "showlegend": column == 1}
        line = go.Scatter(name=f"{tail}, N = {n}", x=x, y=y, mode="lines+markers", marker_size=5, **look)
        figure.add_trace(line, 1, column)
        mark = {"size": 15, "symbol": _MARKS[tail], "line": {"color": INK, "width": 2}}
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


def _work(tokens: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
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
