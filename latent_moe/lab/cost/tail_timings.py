"""Recordings of whole tails: a CSV of medians in, one line a tail out, straight between points on log-log axes.

Columns: tail, tokens, tp, mode (eager or graph), median_us, p10_us, p90_us; one row per tail, T, tp and mode.
"""

import csv
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from latent_moe.errors import InputError
from latent_moe.lab import recordings

NEEDED = ("tail", "tokens", "median_us")


@dataclass
class Line:
    """One tail's times over T; straight between the points on log-log axes."""

    points: dict[int, float] = field(default_factory=dict)

    def at(self, tokens: int) -> float:
        """us at T; beyond the ends the end point's time per token above, its time below."""
        last = max(self.points)
        return loglog(self.points, tokens) * (tokens / last if tokens > last else 1)

    def kind(self, tokens: int) -> str:
        """measured, interpolated or (outside the points) modelled."""
        if tokens in self.points:
            return "measured"
        return "interpolated" if min(self.points) < tokens < max(self.points) else "modelled"


def read(path: str | Path, file: str = "tails.csv") -> list[dict]:
    """Rows of a recording of tails: a CSV, a folder, or a name under profiles/. Raises InputError with the fault."""
    where = Path(path)
    if not where.exists():
        where = recordings.profile_path(str(path))
    where = where / file if where.is_dir() else where
    try:
        with open(where, newline="", encoding="utf-8") as source:
            reader = csv.DictReader(source)
            missing = [name for name in NEEDED if name not in (reader.fieldnames or [])]
            if missing:
                raise InputError(f"{where}: lacks the columns {', '.join(missing)}")
            return [_row(raw, f"{where} line {reader.line_num}") for raw in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{where}: cannot be read as a recording of tails ({error})") from error


def _row(raw: Mapping[str, str], where: str) -> dict:
    try:
        tokens, us = int(raw["tokens"]), float(raw["median_us"])
        tp = int(raw["tp"]) if raw.get("tp") else None
    except (TypeError, ValueError) as error:
        raise InputError(f"{where}: tokens, tp and median_us must be numbers") from error
    if tokens < 1 or not (math.isfinite(us) and us > 0):
        raise InputError(f"{where}: tokens and median_us must be positive")
    return {**raw, "tokens": tokens, "median_us": us, "tp": tp, "mode": raw.get("mode") or "eager"}


def first_of_modes(mode: str) -> tuple[str, str]:
    """The mode by whose rows to judge, and the one that answers where those are lacking."""
    return (mode, "eager" if mode == "graph" else "graph")


def lines(rows: Iterable[Mapping], mode: str | None = None) -> dict[tuple, Line]:
    """{(tail, tp, mode): Line}. With `mode` only its rows; rows without a mode count as eager."""
    series: dict[tuple, Line] = {}
    for row in rows:
        key = (row["tail"], row.get("tp"), row.get("mode") or "eager")
        if mode is None or key[2] == mode:
            series.setdefault(key, Line()).points[row["tokens"]] = row["median_us"]
    return series


def loglog(points: Mapping[int, float], x: float) -> float:
    """The value at x > 0 of the points, both axes logarithmic; beyond the ends the end value.

    `points` maps positive x to positive y and has at least one. Raises ValueError when it has none.
    """
    if not points:
        raise ValueError("no points to interpolate")
    xs = sorted(points)
    if x <= xs[0] or x >= xs[-1]:
        return points[xs[0] if x <= xs[0] else xs[-1]]
    high = next(i for i, edge in enumerate(xs) if edge >= x)
    left, right = xs[high - 1], xs[high]
    part = math.log(x / left) / math.log(right / left)
    return math.exp((1 - part) * math.log(points[left]) + part * math.log(points[right]))


def leave_one_out_error(points: Mapping[int, float]) -> float | None:
    """Median relative error of each inner point from its neighbours' line; None with fewer than three points."""
    inner = sorted(points)[1:-1]
    if not inner:
        return None
    errors = []
    for x in inner:
        others = {key: value for key, value in points.items() if key != x}
        errors.append(abs(loglog(others, x) / points[x] - 1))
    return median(errors)
