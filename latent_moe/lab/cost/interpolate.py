"""Straight lines between measured points on log-log axes."""

import math
from collections.abc import Mapping
from statistics import median


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
