"""README's figure, drawn from a recording: `python -m latent_moe.lab.plots.figures` writes profiles/figures/tail_time.svg."""

import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import plotly.graph_objects as go

from latent_moe.lab.plots.layer import against_tokens
from latent_moe.lab.plots.theme import of_manifest
from latent_moe.lab.recordings import load_manifest, profiles_dir

RECORDING = "h200_tp8_shapes"
TAILS = ("replicated", "column_parallel", "fused")


def tail_time(folder: Path, tails: Sequence[str] = TAILS) -> go.Figure:
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
    """Write the figure and return where it is; `out` defaults to profiles/figures."""
    folder = out or profiles_dir() / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "tail_time.svg"
    tail_time(profiles_dir() / RECORDING).write_image(path, width=860, height=440)
    return path


if __name__ == "__main__":
    print(main(Path(sys.argv[1]) if len(sys.argv) > 1 else None))
