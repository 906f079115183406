"""Figure of a throughput table against itself: how far Little's law falls short of the concurrency."""

import pandas as pd
import plotly.graph_objects as go

from latent_moe.lab.plots.theme import BASELINE, CANDIDATE, caption, finish


def drain(facts: pd.DataFrame, kind: str, device: str = "") -> go.Figure:
    """Bars per concurrency and arm; `facts` holds cost.table_facts.RowFacts: concurrency, config, drain_pct."""
    arms = facts.groupby("config", sort=False)
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
