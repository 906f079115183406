"""Figure of a plan: how wide an interval some pairs of runs give, and how likely they find an effect."""

import math

import plotly.graph_objects as go
from plotly.subplots import make_subplots
from scipy import stats

from latent_moe.lab.plots.theme import BASELINE, CANDIDATE, INK, caption, finish
from latent_moe.lab.results.stats import CONFIDENCE, t_power

MOST = 60


def interval_width(pairs: int = 4, sd_pct: float = 2.0, effect_pct: float = 3.0) -> go.Figure:
    """Two panels against the number of pairs, with `pairs` marked: half the width of the 95 % paired t interval, and the
    chance that it excludes zero when the effect is real.

    `sd_pct` is the standard deviation of a pair's change, percentage points; all from Student's t, nothing is measured.
    """
    numbers = list(range(2, max(MOST, pairs) + 1))
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
    return float(stats.t.ppf((1 + CONFIDENCE) / 2, pairs - 1) * sd_pct / math.sqrt(pairs))
