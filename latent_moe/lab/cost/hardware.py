"""Machines: what the cost model knows of a GPU, from the constants or from a calibration of this machine.

The constants are rows of a CSV: name, value, unit, kind, source, and low and high where sources differ or state a range. Kinds: vendor (a data sheet), published (somebody
else's measurement), measured (this project's, under profiles/), assumed (nobody's measurement: said so wherever it is
used).
"""

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from latent_moe.errors import InputError, unknown

CONSTANTS = Path(__file__).with_name("constants.csv")
CONSTANT_COLUMNS = ("name", "value", "unit", "kind", "source")
RANGE_COLUMNS = ("low", "high")
CONSTANT_UNITS = ("TFLOP/s", "TB/s", "GB/s", "MB", "us", "ratio", "count")
CONSTANT_KINDS = ("vendor", "published", "measured", "assumed")


@dataclass(frozen=True)
class Constant:
    """One figure with where it comes from."""

    name: str
    value: float
    unit: str
    kind: str
    source: str
    low: float | None = None
    high: float | None = None


@cache
def built_in_constants() -> dict[str, Constant]:
    """The constants that come with the package, by name."""
    return load_constants(CONSTANTS)


def load_constants(path: str | Path) -> dict[str, Constant]:
    """Read a constants CSV. Raises InputError with file, line and fault."""
    try:
        with open(path, newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            if tuple(reader.fieldnames or ()) not in (CONSTANT_COLUMNS, (*CONSTANT_COLUMNS, *RANGE_COLUMNS)):
                raise InputError(f"{path}: the columns must be {','.join(CONSTANT_COLUMNS)}")
            rows = [_constant(row, f"{path} line {reader.line_num}") for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: cannot be read as a constants CSV ({error})") from error
    return _by_name(rows, path)


def _by_name(rows: list[Constant], path) -> dict[str, Constant]:
    named = {row.name: row for row in rows}
    if len(named) != len(rows):
        names = [row.name for row in rows]
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"{path}: {twice} stands there twice")
    return named


def _constant(row: dict[str, str], where: str) -> Constant:
    if None in row.values() or None in row or not all(row[column] for column in CONSTANT_COLUMNS):
        raise InputError(f"{where}: every constant needs a name, a value, a unit, a kind and a source")
    if row["unit"] not in CONSTANT_UNITS:
        raise InputError(f"{where}: unknown unit {row['unit']!r} (there are: {', '.join(CONSTANT_UNITS)})")
    if row["kind"] not in CONSTANT_KINDS:
        raise InputError(f"{where}: unknown kind {row['kind']!r} (there are: {', '.join(CONSTANT_KINDS)})")
    value = _number(row["value"], where)
    low, high = (_number(row[name], where) if row.get(name) else None for name in RANGE_COLUMNS)
    if (low is None) != (high is None) or not (low or value) <= value <= (high or value):
        raise InputError(f"{where}: low and high must stand on either side of the value")
    return Constant(row["name"], value, row["unit"], row["kind"], row["source"], low, high)


def _number(text: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0:
        raise InputError(f"{where}: {text!r} is not a number of at least 0")
    return value


Constants = Mapping[str, Constant]
ARCHITECTURE = {"mi355x": "gfx950", "mi350x": "gfx950", "mi325x": "gfx942", "mi300x": "gfx942"}
ARCHITECTURE |= {"h200": "sm_90", "h100": "sm_90", "b200": "sm_100", "b300": "sm_103", "gb300": "sm_103"}
# Whose tuned GEMM times (a folder under profiles/) hold for a machine; the others are modelled by their roofline.
GEMM_TIMES = {"mi355x": "mi355x_aiter_gemm", "mi350x": "mi355x_aiter_gemm"}


@dataclass(frozen=True)
class Hardware:
    """One GPU of a node and its links. Sources of built-in figures: cost/constants.csv.

    `links` is the number of point-to-point links, each of `link_gb_per_s` per direction; 0 is a switch, where
    `link_gb_per_s` reaches any peer. Efficiencies are the part of the peak that kernels get. `kernel_us` is what
    one more dependent kernel costs, `gemm_floor_us` the shortest GEMM. `gemm_times` names published GEMM times and
    `in_model_ratio` is what a prefill GEMM takes inside a model over what the tuner that published them measured.
    `graph_node_us` and `eager_kernel_us` are the least an empty kernel takes in a captured graph and launched by itself
    behind others, 0 where nobody measured it. `ranges` gives the least and the greatest figure that its sources allow, by name.
    `kernel_error` and `gemm_error` are the relative errors of an elementwise kernel and of a GEMM's roofline, None
    where nothing says them.
    """

    name: str
    arch: str
    peak_bf16_tflops: float
    hbm_tb_per_s: float
    link_gb_per_s: float
    links: float
    llc_mb: float
    stream_efficiency: float
    kernel_us: float
    gemm_efficiency: float
    gemm_bandwidth_efficiency: float
    gemm_floor_us: float
    collective_latency_us: float
    collective_efficiency: float
    in_model_ratio: float = 1.0
    kernel_error: float | None = None
    gemm_error: float | None = None
    graph_node_us: float = 0.0
    eager_kernel_us: float = 0.0
    tile_n: float = 1
    tile_from_m: float = 2048
    gemm_times: str | None = None
    kinds: Mapping[str, str] = field(default_factory=dict, hash=False, compare=False)
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict, hash=False, compare=False)

    def stream_us(self, n_bytes: float) -> float:
        """Time to move `n_bytes` between memory and an elementwise kernel, without its launch."""
        return n_bytes / (self.stream_efficiency * self.hbm_tb_per_s * 1e6)

    def ceiling_us(self, n_bytes: float, flop: float, mode: str = "graph") -> float:
        """The least time for so many bytes and FLOP at the data sheet's peaks, with one launch of `mode`.

        Where the least launch is not known it counts as none: the ceiling is then looser, never wrong.
        """
        launch_us = self.graph_node_us if mode == "graph" else self.eager_kernel_us
        return max(n_bytes / self.hbm_tb_per_s, flop / self.peak_bf16_tflops) / 1e6 + launch_us

    def link_bytes_per_us(self, tp: int) -> float:
        """Bytes one GPU sends per us when it talks to its tp - 1 peers at once."""
        lanes = min(self.links, tp - 1) if self.links else 1
        return self.collective_efficiency * self.link_gb_per_s * lanes * 1e3

    def replace(self, **changes: Any) -> "Hardware":
        """A copy with some figures changed. Raises InputError for one that is not a positive number."""
        for name, value in changes.items():
            if name in FIGURES:
                _check_positive(name, value)
        return replace(self, **changes)


# Median relative error of the roofline over all rows of profiles/mi355x_aiter_gemm: what to expect where nothing but
# a machine's rates is known.
ROOFLINE_ERROR = 0.14
FIGURES = (
    "peak_bf16_tflops",
    "hbm_tb_per_s",
    "link_gb_per_s",
    "links",
    "llc_mb",
    "stream_efficiency",
    "kernel_us",
    "gemm_efficiency",
    "gemm_bandwidth_efficiency",
    "gemm_floor_us",
    "collective_latency_us",
    "collective_efficiency",
)


def of_device(device: str) -> str | None:
    """The name by which the constants know a device ("2 x NVIDIA H200": h200), None where they do not."""
    return next((name for name in known() if name in device.lower().split()), None)


def known(constants: Constants | None = None) -> list[str]:
    """Names of the machines that the constants describe."""
    names = (constants or built_in_constants()).keys()
    return sorted({name.split(".")[0] for name in names} & ARCHITECTURE.keys())


def get(name: str, constants: Constants | None = None) -> Hardware:
    """The machine called `name` (any case). Raises InputError that names the known ones."""
    rows = constants or built_in_constants()
    key = name.lower().replace("-", "").replace(" ", "")
    if key not in known(rows):
        raise unknown("hardware", name, known(rows))
    missing = [figure for figure in FIGURES if f"{key}.{figure}" not in rows]
    if missing:
        raise InputError(f"the constants of {key} lack {', '.join(missing)}")
    return _build(key, rows)


def _build(key: str, rows: Constants) -> Hardware:
    figures = {figure: rows[f"{key}.{figure}"].value for figure in FIGURES}
    for figure, value in figures.items():
        _check_positive(figure, value)
    optional = {"tile_n": "gemm", "tile_from_m": "gemm", "in_model_ratio": key, "kernel_error": key}
    optional |= {"graph_node_us": key, "eager_kernel_us": key}
    given = {name: rows[f"{of}.{name}"].value for name, of in optional.items() if f"{of}.{name}" in rows}
    kinds = {figure: rows[f"{key}.{figure}"].kind for figure in FIGURES}
    ranges = {
        name.split(".")[1]: (row.low, row.high)
        for name, row in rows.items()
        if name.startswith(f"{key}.") and row.low is not None and row.high is not None
    }
    times = GEMM_TIMES.get(key)
    return Hardware(key, ARCHITECTURE[key], **figures, **given, gemm_times=times, kinds=kinds, ranges=ranges)


def _check_positive(name: str, value: float) -> None:
    # `links` may be 0: a switch.
    if value < 0 or (value == 0 and name != "links"):
        raise InputError(f"hardware: {name} {value!r} is not a positive number")


def from_calibration(measured: Mapping[str, float], like: Hardware) -> Hardware:
    """This machine: `like` with what `microbench.calibrate` measured here in place of its figures.

    `measured` has copy_tb_per_s, gemm_tflops and launch_us. Data-sheet peaks of an unknown machine are not known:
    the measured rates become the peaks and the efficiencies become 1. Links and cache stay those of `like`, which is
    an assumption: the collectives' terms are no better than that.
    """
    missing = [key for key in ("copy_tb_per_s", "gemm_tflops", "launch_us") if not measured.get(key)]
    if missing:
        raise InputError(f"calibration lacks {', '.join(missing)}")
    rates = {"peak_bf16_tflops": measured["gemm_tflops"], "hbm_tb_per_s": measured["copy_tb_per_s"]}
    full = dict.fromkeys(("gemm_efficiency", "gemm_bandwidth_efficiency", "stream_efficiency"), 1.0)
    launch = {"kernel_us": measured["launch_us"], "gemm_floor_us": measured["launch_us"]}
    errors = {"kernel_error": ROOFLINE_ERROR, "gemm_error": ROOFLINE_ERROR}
    # What was not measured is another machine's: assumed, whatever it is there.
    kinds = dict.fromkeys(FIGURES, "assumed") | dict.fromkeys([*rates, *full, *launch], "measured")
    return like.replace(
        name="this machine",
        arch="measured here",
        gemm_times=None,
        kinds=kinds,
        ranges={},
        **errors,
        **rates,
        **full,
        **launch,
    )
