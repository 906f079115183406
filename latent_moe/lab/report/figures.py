"""A figure of a notebook as HTML: a described place for it and its data, which report.js draws."""

import html
import json

from latent_moe.lab.plots.theme import alt_text

PLOTLY = "application/vnd.plotly.v1+json"


def figure_html(figure: dict) -> str:
    """A place for a figure and its data; report.js draws it. Readers without the picture get its description."""
    said = html.escape(alt_text(figure), quote=True)
    # A script element ends at "</" wherever that stands.
    data = json.dumps({"data": figure["data"], "layout": figure.get("layout", {})}).replace("</", "<\\/")
    height = figure.get("layout", {}).get("height", 440)
    return (
        f'<figure class="figure" tabindex="0" aria-label="{said}" style="min-height:{height}px">'
        f'<script type="application/json">{data}</script></figure>'
    )
