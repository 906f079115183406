"""Figures of what sharding is worth: against T on several machines, in a recording, and for a traffic pattern."""

from collections.abc import Mapping
from pathlib import Path

import pandas as pd
import plotly.graph_objects as go

from latent_moe.config import KIMI_K3
from latent_moe.errors import InputError
from latent_moe.lab.cost import predict, savings
from latent_moe.lab.cost.hardware import Hardware
from latent_moe.lab.cost.tail import tail_cost
from latent_moe.lab.plots.cost import expected_gain, machine_of
from latent_moe.lab.plots.theme import INK, caption, colour, finish, of_manifest
from latent_moe.lab.recordings import load_manifest

TOKENS = tuple(2**i for i in range(15))
# Where a server's own step times are not known: a step takes this many times what its tails take. An assumption.
STEP_OVER_TAIL = 4
_MARKS = ("circle", "square", "diamond", "x", "triangle-up", "cross")


def sharding_gain(cases: Mapping[str, tuple[str, int, float | None]]) -> go.Figure:
    """Per cent of the replicated tail that column_parallel saves, against T; cases: label -> (hardware, tp, GB/s a link or None)."""
    lines = {label: _modelled_pct(*case) for label, case in cases.items()}
    said = caption("modelled", note="data sheets and published kernels; collectives included")
    return _percent_lines(lines, "What sharding saves of a whole tail", said)


def _modelled_pct(hardware: str, tp: int, link_gb_per_s: float | None) -> dict[int, float]:
    machine = machine_of(hardware, link_gb_per_s)
    both = {
        t: [tail_cost(name, t, tp, machine).total_us for name in ("replicated", "column_parallel")]
        for t in TOKENS
    }
    return {t: 100 * (1 - after / before) for t, (before, after) in both.items()}


def measured_gain(series: Mapping[str, Path], mode: str = "graph") -> go.Figure:
    """The same from recordings of `latent-moe tails`: a line for each of `series`, label -> CSV file in a recording.

    The figure names the first one's device: take recordings of one kind of machine.
    """
    tables = {label: pd.read_csv(file) for label, file in series.items()}
    lines = {label: _measured_pct(table[table["mode"] == mode]) for label, table in tables.items()}
    tp = "/".join(sorted({str(tp) for table in tables.values() for tp in table["tp"]}))
    first = next(iter(series.values())).parent
    said = of_manifest(load_manifest(first), f"tp = {tp}, {mode}, medians; below 0: sharding loses")
    return _percent_lines(lines, "What sharding saved of a whole tail", said)


def _measured_pct(table: pd.DataFrame) -> dict[int, float]:
    wide = table.pivot_table(index="tokens", columns="tail", values="median_us")
    saved = (100 * (1 - wide["column_parallel"] / wide["replicated"])).dropna()
    return dict(zip(saved.index.tolist(), saved.tolist(), strict=True))


def _percent_lines(lines: Mapping[str, Mapping[int, float]], title: str, said: str) -> go.Figure:
    traces = [
        go.Scatter(
            name=label,
            x=list(points),
            y=list(points.values()),
            mode="lines+markers",
            line_color=colour(i),
            marker={"symbol": _MARKS[i % len(_MARKS)], "size": 8},
        )
        for i, (label, points) in enumerate(lines.items())
    ]
    figure = finish(
        go.Figure(traces), title, said, "T, tokens in the step", "saved, % of the replicated tail"
    )
    figure.add_hline(y=0, line_color=INK, line_width=1)
    return figure.update_xaxes(type="log", dtick="D2")


def decode_savings(table: pd.DataFrame, device: str = "8 x MI355X") -> go.Figure:
    """What a decode step saves per layer, a line for each column of `table` (index: concurrency)."""
    lines = [
        go.Scatter(
            name=name,
            x=[str(c) for c in table.index],
            y=table[name].tolist(),
            mode="lines+markers",
            line={"color": colour(i), "dash": "dash" if "modelled" in name else "solid"},
            marker={"symbol": _MARKS[i % len(_MARKS)], "size": 9},
        )
        for i, name in enumerate(table.columns)
    ]
    said = caption(
        "published", device, note="implied by the pull request's rows; dashed: modelled from kernels"
    )
    figure = finish(
        go.Figure(lines), "What a decode step saves", said, "concurrency", "us per layer and decode step"
    )
    return figure.update_xaxes(type="category").update_yaxes(rangemode="tozero")


def traffic_gain(
    concurrency: int,
    tp: int,
    machine: Hardware,
    isl: int = 8192,
    osl: int = 1024,
    budget: int = 16384,
    step_ms: float | None = None,
    decode_ms: float | None = None,
) -> go.Figure:
    """The expected change for a traffic pattern. `step_ms` and `decode_ms` are the baseline's full prefill step and
    decode step; where one is missing it is assumed to be STEP_OVER_TAIL times its tails. A pattern that the closed
    form does not describe gives a figure that says so.
    """
    setup = predict.Setup(tp=tp, budget=budget)
    known = step_ms is not None and decode_ms is not None
    steps = "given steps" if known else f"steps assumed {STEP_OVER_TAIL} times their tails"
    try:
        step, decode = (
            ms if ms is not None else _assumed_ms(t, machine, setup)
            for ms, t in ((step_ms, budget), (decode_ms, concurrency))
        )
        row = predict.traffic_row(concurrency, isl, osl, step, decode, budget)
        found = predict.predict_row(row, step, savings.modelled(machine, tp), setup)
    except InputError as error:
        return finish(
            go.Figure(), "No prediction", caption("modelled", note=str(error)), "metric", "change, %"
        )
    return expected_gain(found, f"{machine.name}, tp {tp}, {steps} ({step:,.0f} and {decode:,.0f} ms)")


def _assumed_ms(tokens: int, machine: Hardware, setup: predict.Setup) -> float:
    tail_us = tail_cost("replicated", tokens, setup.tp, machine, KIMI_K3).total_us
    return STEP_OVER_TAIL * setup.layers * tail_us / 1e3
