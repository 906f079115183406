"""Figures of the cost model and of what sharding is worth: terms of a tail, the cheapest tail, predicted against published.

Every figure says the kind of its data below its title: measured, published or modelled.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from latent_moe.config import KIMI_K3, LatentMoEConfig
from latent_moe.errors import InputError
from latent_moe.lab.cost import hardware as machines
from latent_moe.lab.cost import predict, savings
from latent_moe.lab.cost.hardware import Hardware
from latent_moe.lab.cost.predict import Predicted
from latent_moe.lab.cost.tail import TAIL_NAMES, crossover_map, tail_cost
from latent_moe.lab.plots.theme import COLOURS, INK, caption, colour, finish, of_manifest
from latent_moe.lab.recordings import load_manifest

METRIC_NAMES = {
    "total_tok_per_s": "total throughput",
    "mean_ttft_ms": "mean TTFT",
    "mean_tpot_ms": "mean TPOT",
}


def machine_of(hardware: Hardware | str, link_gb_per_s: float | None = None) -> Hardware:
    """A machine by name or as it is, with another link bandwidth where one is given. Raises InputError as hardware.get does."""
    machine = machines.get(hardware) if isinstance(hardware, str) else hardware
    return machine.replace(link_gb_per_s=link_gb_per_s) if link_gb_per_s else machine


def tail_terms(
    tokens: int,
    tp: int,
    hardware: Hardware | str,
    link_gb_per_s: float | None = None,
    config: LatentMoEConfig = KIMI_K3,
) -> go.Figure:
    """Stacked bars: the terms of every tail at one T and tp; what is hidden under another term is not in the bar."""
    machine = machine_of(hardware, link_gb_per_s)
    costs = [tail_cost(tail, tokens, tp, machine, config) for tail in TAIL_NAMES]
    names = list(dict.fromkeys(term.name for cost in costs for term in cost.terms))
    bars = [
        _term_bar(name, costs, COLOURS[i % len(COLOURS)], i >= len(COLOURS)) for i, name in enumerate(names)
    ]
    figure = go.Figure(bars).update_layout(barmode="stack")
    caption = f"modelled, {machine.name}, link {machine.link_gb_per_s:g} GB/s each direction"
    return finish(figure, f"What each tail takes at T = {tokens}, tp = {tp}", caption, "tail", "us per layer")


def _term_bar(name: str, costs, colour: str, hatched: bool) -> go.Bar:
    hidden = [sum(term.hidden_us for term in cost.terms if term.name == name) for cost in costs]
    note = [f"{us:.1f} us more run hidden" if us else "" for us in hidden]
    return go.Bar(
        name=name,
        x=[cost.tail for cost in costs],
        y=[cost.us(name) for cost in costs],
        marker={"color": colour, "pattern": {"shape": "/" if hatched else ""}},
        customdata=note,
        hovertemplate="%{x}: " + name + " %{y:.1f} us %{customdata}<extra></extra>",
    )


def crossovers(
    hardware: Hardware | str,
    link_gb_per_s: float | None = None,
    tps: Sequence[int] = (1, 2, 4, 8),
    largest: int = 14,
    config: LatentMoEConfig = KIMI_K3,
) -> go.Figure:
    """A map of T (powers of two up to 2 ** largest) against tp, coloured by the cheapest tail."""
    machine = machine_of(hardware, link_gb_per_s)
    tokens = [2**power for power in range(largest + 1)]
    best = crossover_map(tokens, tps, machine, config)
    steps = len(TAIL_NAMES)
    edges = [(i + edge) / steps for i in range(steps) for edge in (0, 1)]
    scale = [[edge, COLOURS[i // 2]] for i, edge in enumerate(edges)]
    heat = go.Heatmap(
        x=[str(t) for t in tokens],
        y=[str(tp) for tp in tps],
        z=[[TAIL_NAMES.index(best[tp][t]) for t in tokens] for tp in tps],
        text=[[best[tp][t] for t in tokens] for tp in tps],
        hovertemplate="T = %{x}, tp = %{y}: %{text}<extra></extra>",
        colorscale=scale,
        zmin=-0.5,
        zmax=steps - 0.5,
        xgap=1,
        ygap=1,
        colorbar={"tickvals": list(range(steps)), "ticktext": list(TAIL_NAMES)},
    )
    caption = f"modelled, {machine.name}, link {machine.link_gb_per_s:g} GB/s each direction"
    figure = finish(go.Figure(heat), "The cheapest tail", caption, "T, tokens in the step", "tp, ranks")
    # Powers of two as places of equal width.
    return figure.update_xaxes(type="category").update_yaxes(type="category")


def predicted_against_published(answer: Mapping[str, Any], metric: str = "total_tok_per_s") -> go.Figure:
    """Bars per concurrency: the predicted change with its 90 % band beside the published one.

    `answer` is what `cost.report.predict` returns.
    """
    rows = answer["rows"]
    x = [str(row["concurrency"]) for row in rows]
    bands = [row["band90_pct"][metric] for row in rows]
    predicted = [row["delta_pct"][metric] for row in rows]
    bars = [go.Bar(name="predicted (modelled)", x=x, y=predicted, marker_color=COLOURS[0])]
    bars[0].error_y = {
        "type": "data",
        "symmetric": False,
        "array": [high - middle for (_, high), middle in zip(bands, predicted, strict=True)],
        "arrayminus": [middle - low for (low, _), middle in zip(bands, predicted, strict=True)],
        "color": INK,
    }
    known = [(row["published_delta_pct"] or {}).get(metric) for row in rows]
    bars.append(
        go.Bar(name="published", x=x, y=known, marker={"color": COLOURS[1], "pattern": {"shape": "/"}})
    )
    error = answer["mae_pp"][metric]
    said = "no published rows" if error is None else f"mean absolute error {error:.2f} points"
    title = f"Change of {METRIC_NAMES.get(metric, metric)}: predicted against published"
    source = f"savings from the {answer['savings_from']}"
    caption = f"modelled ({answer['hardware']}, {source}) beside published; whiskers: 90 % band; {said}"
    figure = finish(go.Figure(bars), title, caption, "concurrency", "change, %")
    return figure.update_xaxes(type="category")


def _whiskers(spread: Sequence[float | None]) -> dict[str, Any] | None:
    """Whiskers where an error is known; none at all where nothing says one."""
    known = any(value is not None for value in spread)
    return {"type": "data", "array": list(spread), "color": INK} if known else None


def expected_gain(predicted: Predicted, source: str) -> go.Figure:
    """One traffic pattern: the change of each metric with its uncertainty. `source` says whose machine it is."""
    names = list(METRIC_NAMES)
    spread = [predicted.uncertainty_pp.get(name) for name in names]
    bar = go.Bar(
        x=[METRIC_NAMES[name] for name in names],
        y=[predicted.delta_pct[name] for name in names],
        error_y=_whiskers(spread),
        marker_color=COLOURS[0],
    )
    row = predicted.row
    title = f"Expected change: {row.concurrency} in flight, {row.isl} in, {row.osl} out"
    return finish(go.Figure(bar), title, f"{predicted.kind}; {source}", "metric", "change, %")


TOKENS = tuple(2**i for i in range(15))
# Where a server's own step times are not known: a step takes this many times what its tails take. An assumption.
STEP_OVER_TAIL = 4
_SYMBOLS = ("circle", "square", "diamond", "x", "triangle-up", "cross")


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
            marker={"symbol": _SYMBOLS[i % len(_SYMBOLS)], "size": 8},
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
            marker={"symbol": _SYMBOLS[i % len(_SYMBOLS)], "size": 9},
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
