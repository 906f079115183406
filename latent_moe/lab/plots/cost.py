"""Figures of the cost model: what a tail is made of, which tail wins where, predicted against published, the gain.

Every figure says the kind of its data below its title: measured, published or modelled.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from latent_moe.config import KIMI_K3, LatentMoEConfig
from latent_moe.lab.cost import hardware as machines
from latent_moe.lab.cost.hardware import Hardware
from latent_moe.lab.cost.predict import Predicted
from latent_moe.lab.cost.tail import TAIL_NAMES, crossover_map, tail_cost
from latent_moe.lab.plots.theme import COLOURS, INK, finish

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
    """Bars per concurrency: the predicted change with its uncertainty beside the published one.

    `answer` is what `cost.report.predict` returns.
    """
    rows = answer["rows"]
    x = [str(row["concurrency"]) for row in rows]
    spread = [row["uncertainty_pp"].get(metric) for row in rows]
    predicted = [row["delta_pct"][metric] for row in rows]
    bars = [go.Bar(name="predicted (modelled)", x=x, y=predicted, marker_color=COLOURS[0])]
    bars[0].error_y = _whiskers(spread)
    known = [(row["published_delta_pct"] or {}).get(metric) for row in rows]
    bars.append(
        go.Bar(name="published", x=x, y=known, marker={"color": COLOURS[1], "pattern": {"shape": "/"}})
    )
    error = answer["mae_pp"][metric]
    said = "no published rows" if error is None else f"mean absolute error {error:.2f} points"
    title = f"Change of {METRIC_NAMES.get(metric, metric)}: predicted against published"
    source = f"savings from the {answer['savings_from']}"
    caption = f"modelled ({answer['hardware']}, {source}) beside published; {said}"
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
