"""Time of one bf16 GEMM, C[M, N] = A[M, K] B[N, K]^T, on a machine.

Where times of the shape exist they are used: as measured, or on a log-log line between two M. A shape without times
of its own takes the nearest shape's times, scaled by the roofline of the two; without any times it is its roofline:
floor + max(2 M N K / (efficiency peak), bytes / (efficiency bandwidth)). Every answer says which of these it is.
"""

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from statistics import median

from latent_moe.errors import InputError
from latent_moe.lab import recordings
from latent_moe.lab.cost.hardware import Hardware
from latent_moe.lab.cost.tail_timings import leave_one_out_error, loglog
from latent_moe.lab.cost.terms import Term

BYTES = 2  # bf16
# Shapes further away than this factor in N and K together are no neighbours.
NEAR = math.log(4)
# The in-model times of hardware.in_model_ratio were profiled at this M.
PREFILL_FROM_M = 1024
Shape = tuple[int, int]  # N, K


@dataclass(frozen=True)
class GemmTimes:
    """Published or measured GEMM times of one machine: times[(N, K)][M] in us."""

    name: str
    times: Mapping[Shape, Mapping[int, float]]

    def near(self, n: int, k: int, m: int) -> Shape | None:
        """The nearest shape other than (n, k) with times that reach down to 2 m and up to m."""
        rated = [
            (_distance(shape, (n, k)), shape)
            for shape, points in self.times.items()
            if shape != (n, k) and min(points) <= 2 * max(m, 8) and max(points) >= m and len(points) > 2
        ]
        best = min(rated, default=None)
        return best[1] if best and best[0] <= NEAR else None


def _distance(a: Shape, b: Shape) -> float:
    return math.hypot(*(math.log(x / y) for x, y in zip(a, b, strict=True)))


@cache
def published(name: str) -> GemmTimes:
    """The GEMM times in every CSV of the recording `name` under profiles/. Raises InputError if unusable."""
    folder = recordings.profile_path(name)
    times: dict[Shape, dict[int, float]] = {}
    for file in recordings.load_manifest(folder).files:
        if file.endswith(".csv"):
            _read(folder / file, times)
    return GemmTimes(name, times)


def _read(path: Path, times: dict[Shape, dict[int, float]]) -> None:
    with open(path, newline="", encoding="utf-8") as file:
        for line, row in enumerate(csv.DictReader(file), start=2):
            try:
                m, n, k, us = int(row["M"]), int(row["N"]), int(row["K"]), float(row["us"])
            except (KeyError, TypeError, ValueError) as error:
                raise InputError(f"{path} line {line}: needs M, N, K and us as numbers") from error
            if min(m, n, k) < 1 or not us > 0:
                raise InputError(f"{path} line {line}: M, N, K and us must be positive")
            times.setdefault((n, k), {})[m] = us


def roofline_us(m: int, n: int, k: int, hardware: Hardware) -> float:
    """floor + the longer of arithmetic and memory traffic, in us.

    From tile_from_m rows up N counts in whole tiles of tile_n columns: a half-filled tile takes a whole one's time.
    """
    padded = math.ceil(n / hardware.tile_n) * hardware.tile_n if m >= hardware.tile_from_m else n
    arithmetic = 2 * m * padded * k / (hardware.gemm_efficiency * hardware.peak_bf16_tflops * 1e6)
    moved = BYTES * (m * k + n * k + m * n)
    memory = moved / (hardware.gemm_bandwidth_efficiency * hardware.hbm_tb_per_s * 1e6)
    return hardware.gemm_floor_us + max(arithmetic, memory)


def gemm(m: int, n: int, k: int, hardware: Hardware, name: str = "gemm") -> Term:
    """The GEMM [m, k] x [k, n] as a term. Raises InputError for a size below 1."""
    if min(m, n, k) < 1:
        raise InputError(f"gemm {m} x {n} x {k}: every size must be at least 1")
    if hardware.gemm_times is None:
        return Term(name, roofline_us(m, n, k, hardware), "modelled", hardware.gemm_error)
    table = published(hardware.gemm_times)
    us, kind = lookup(m, n, k, hardware, table)
    error = _fit_error(kind, (n, k), hardware, table)
    if m >= PREFILL_FROM_M and hardware.in_model_ratio != 1:
        us, kind = us * hardware.in_model_ratio, "modelled"
    return Term(name, us, kind, error)


def lookup(m: int, n: int, k: int, hardware: Hardware, table: GemmTimes) -> tuple[float, str]:
    """(us, kind): this shape's times where they reach, else the nearest shape's, else the roofline."""
    own = table.times.get((n, k), {})
    if m in own:
        return own[m], "measured"
    if len(own) > 2 and min(own) <= m <= max(own):
        return loglog(own, m), "interpolated"
    shape = (n, k) if len(own) > 2 else table.near(n, k, m)
    if shape is None:
        return roofline_us(m, n, k, hardware), "modelled"
    points = table.times[shape]
    at = min(max(m, min(points)), max(points))
    scale = roofline_us(m, n, k, hardware) / roofline_us(at, *shape, hardware)
    return loglog(points, at) * scale, "modelled"


def _fit_error(kind: str, shape: Shape, hardware: Hardware, table: GemmTimes) -> float | None:
    if kind == "measured":
        return 0.0
    return (
        leave_one_out_error(table.times[shape])
        if kind == "interpolated"
        else neighbour_error(hardware, table.name)
    )


@lru_cache(maxsize=32)
def neighbour_error(hardware: Hardware, name: str) -> float:
    """Median relative error over all shapes of the recording `name`, each predicted from the others alone."""
    times = published(name).times
    errors = []
    for shape, points in times.items():
        others = GemmTimes(name, {other: value for other, value in times.items() if other != shape})
        errors += [abs(lookup(m, *shape, hardware, others)[0] / us - 1) for m, us in points.items()]
    return median(errors)
