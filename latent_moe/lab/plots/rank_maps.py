"""Heat maps of what each rank holds: rank x column, step by step through a tail."""

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from latent_moe.lab.plots.theme import DIVERGING, HEIGHT, finish, measured_here

Steps = Sequence[Mapping]


def step_map(steps: Steps, step: int = 0, token: int = 0) -> go.Figure:
    """One step of a walk: every rank's row of one token. `steps` is what `walkthrough.walk` returns."""
    shown = steps[step]
    values = shown["values"][:, token]  # [tp, columns]
    figure = go.Figure(_heat(values, _limit(values)))
    title = f"Step {step}: {shown['name']} (token {token})"
    said = measured_here(f"{len(values)} real ranks; {shown['about']}")
    figure = finish(figure, title, said, f"column of {shown['what']}", "rank")
    return figure.update_yaxes(dtick=1, autorange="reversed")


def all_steps(steps: Steps, token: int = 0) -> go.Figure:
    """Every step below each other: what the ranks hold before and after each."""
    titles = [f"{i}: {step['name']}" for i, step in enumerate(steps)]
    figure = make_subplots(rows=len(steps), cols=1, subplot_titles=titles, vertical_spacing=0.075)
    for place, step in enumerate(steps, 1):
        values = step["values"][:, token]
        figure.add_trace(_heat(values, _limit(values), bar=False), place, 1)
    said = measured_here("real ranks; each row a rank, colours per step")
    figure = finish(figure, f"A tail step by step (token {token})", said, "", "rank")
    figure.update_yaxes(dtick=2, autorange="reversed", title="rank").update_xaxes(title_font_size=11)
    figure.update_xaxes(title="column", row=len(steps), col=1)
    return figure.update_layout(height=150 * len(steps) + 140, margin={"t": 110})


def owned_columns(changed, width: int) -> go.Figure:
    """Which columns of its shared partial each rank wrote: `changed` [tp, H] of largest changes."""
    # A change has no sign: white to the palette's orange, from zero.
    heat = _heat(changed, _limit(changed), title="largest change")
    figure = go.Figure(heat.update(zmin=0, colorscale=[(0.0, DIVERGING[1][1]), (1.0, DIVERGING[2][1])]))
    said = measured_here(f"{len(changed)} real ranks, H/tp = {width} columns each")
    title = "What each rank added to its shared partial"
    figure = finish(figure, title, said, "column of shared", "rank")
    return figure.update_yaxes(dtick=1, autorange="reversed").update_layout(height=HEIGHT - 60)


def owned_by_tp(written: Mapping[int, Any], tp: int = 8) -> go.Figure:
    """`owned_columns` of one of several walks: `written` maps tp to [tp, H] of largest changes."""
    changed = written[tp]
    return owned_columns(changed, changed.shape[1] // tp)


def _heat(values, limit: float, bar: bool = True, title: str = "value") -> go.Heatmap:
    return go.Heatmap(
        z=values,
        zmin=-limit,
        zmax=limit,
        colorscale=DIVERGING,
        showscale=bar,
        colorbar={"title": title},
        hovertemplate="rank %{y}, column %{x}: %{z:.3f}<extra></extra>",
    )


def _limit(values) -> float:
    return float(abs(values).max()) or 1.0
