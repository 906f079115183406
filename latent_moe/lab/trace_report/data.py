"""What the page holds: every figure of a recording as plain data, and every kernel as packed columns.

All times are integer nanoseconds; what a recording does not hold is None. The kernels that have a begin and an end
stand in the order of their begin, as byte planes (all lowest bytes, then all second ones, ...) that compress well.
"""

import base64
import zlib
from dataclasses import asdict
from typing import Any

import numpy as np

from latent_moe.lab.traces import metrics
from latent_moe.lab.traces.collectives import collectives
from latent_moe.lab.traces.kernel_names import decode_gemm
from latent_moe.lab.traces.layer_fold import fold_layers
from latent_moe.lab.traces.steps import step_of
from latent_moe.lab.traces.table import Coded, Kernels, Trace, group_codes

LANE = ("process", "agent", "queue", "stream")
GAPS_SHOWN = 50
# Column of the packed kernels -> bytes a value.
PLANES = {"since_ns": 6, "dur_ns": 6, "name": 3, "lane": 2, "region": 3, "shape": 3}


def page_data(trace: Trace) -> dict[str, Any]:
    """The recording's figures, tables and dictionaries; `packed_kernels` holds its rows."""
    kernels = trace.kernels
    calls = metrics.calls(kernels)
    lanes, _ = _lanes(kernels)
    return {
        "sources": trace.files,
        "formats": trace.formats,
        "partial": trace.partial,
        "calls": calls,
        "total_ns": metrics.total_ns(kernels),
        "busy_ns": metrics.busy_ns(kernels),
        "span_ns": metrics.span_ns(kernels),
        "untimed_calls": len(kernels) - calls,
        "first_ns": _first_ns(kernels),
        "names": _names(kernels),
        "lanes": lanes,
        "regions": list(kernels["region"].values),
        "shapes": [list(shape) for shape in _shapes(kernels)[0]],
        "by": {
            **{column: _group(kernels, column) for column in ("kind", "name", "region", "rank")},
            "shape": _group(kernels, metrics.shapes(kernels)),
            "step": _group(kernels, step_of(trace)),
        },
        "gemms": _gemms(kernels),
        "idle_ns": metrics.idle_ns(kernels),
        "gaps": [asdict(gap) for gap in metrics.largest_gaps(kernels, GAPS_SHOWN)],
        "layer": _layer(kernels),
        "collectives": asdict(collectives(kernels)),
        "longest_collectives_ns": _longest(kernels, "collective"),
        "warnings": [asdict(warning) for warning in trace.warnings],
    }


def packed_kernels(kernels: Kernels) -> tuple[int, str]:
    """(rows, base64 of zlib of the byte planes in the order of PLANES) for the kernels with begin and end."""
    rows = np.flatnonzero(metrics.placed(kernels))
    rows = rows[np.argsort(kernels["start_ns"][rows], kind="stable")]
    start = kernels["start_ns"][rows]
    columns = {
        "since_ns": np.diff(start, prepend=start[:1]),
        "dur_ns": kernels["dur_ns"][rows],
        "name": kernels["name"].codes[rows] + 1,
        "lane": _lanes(kernels)[1][rows],
        "region": kernels["region"].codes[rows].astype(np.int64) + 1,
        "shape": _shapes(kernels)[1][rows] + 1,
    }
    planes = b"".join(_planes(columns[name], width) for name, width in PLANES.items())
    return len(rows), base64.b64encode(zlib.compress(planes, 6)).decode("ascii")


def _planes(values: np.ndarray, width: int) -> bytes:
    table = np.ascontiguousarray(values, dtype="<i8").view(np.uint8).reshape(-1, 8)
    return np.ascontiguousarray(table[:, :width].T).tobytes()


def _first_ns(kernels: Kernels) -> int | None:
    mask = metrics.placed(kernels)
    return int(kernels["start_ns"][mask].min()) if mask.any() else None


def _names(kernels: Kernels) -> list[dict[str, Any]]:
    """Each kernel name with its kind and library, and what a GEMM's name says."""
    column = kernels["name"]
    _, first = np.unique(column.codes, return_index=True)
    known = {int(column.codes[row]): row for row in first}
    found = []
    for code, name in enumerate(column.values):
        row = known.get(code)
        kind, library = (_text(kernels[what], row) for what in ("kind", "library"))
        gemm = decode_gemm(name) if kind == "gemm" else None
        found.append({"name": name, "kind": kind, "library": library, "gemm": asdict(gemm) if gemm else None})
    return found


def _text(column: Coded, row: int | None) -> str | None:
    code = -1 if row is None else int(column.codes[row])
    return column.values[code] if code >= 0 else None


def _lanes(kernels: Kernels) -> tuple[list[dict[str, Any]], np.ndarray]:
    """Every queue and stream of every device, and each kernel's place among them."""
    codes = group_codes(kernels, LANE)
    _, first, places = np.unique(codes, return_index=True, return_inverse=True)
    lanes = [_lane(kernels, row) for row in first]
    return lanes, places.reshape(-1)


def _lane(kernels: Kernels, row: int) -> dict[str, Any]:
    texts: dict[str, Any] = {column: _text(kernels[column], row) for column in LANE}
    return texts | {"rank": _rank(kernels, row)}


def _rank(kernels: Kernels, row: int) -> int | None:
    rank = int(kernels["rank"][row])
    return rank if rank >= 0 else None


def _shapes(kernels: Kernels) -> tuple[list[tuple[int, int, int]], np.ndarray]:
    """The GEMM shapes (M, N, K), and each kernel's place among them, -1 without a shape."""
    table = np.stack([np.asarray(kernels[letter], dtype=np.int64) for letter in "MNK"], axis=1)
    known = (table >= 0).all(axis=1)
    places = np.full(len(kernels), -1, dtype=np.int64)
    if not known.any():
        return [], places
    unique, inverse = np.unique(table[known], axis=0, return_inverse=True)
    places[known] = inverse.reshape(-1)
    return [(int(m), int(n), int(k)) for m, n, k in unique], places


def _layer(kernels: Kernels) -> dict[str, Any] | None:
    fold = fold_layers(kernels)
    if fold is None:
        return None
    return {"layers": fold.layers, "mean_ns": fold.mean_ns, "parts": [asdict(part) for part in fold.parts]}


def _group(kernels: Kernels, column: str | Coded) -> list[dict[str, Any]]:
    return [asdict(row) for row in metrics.group(kernels, column)]


def _gemms(kernels: Kernels) -> list[dict[str, Any]]:
    """Per kernel name and shape: calls, times, TFLOP/s and TB/s at the median; the bytes are each operand's once, with the
    data types that the name states (None where it states none)."""
    shapes, places = _shapes(kernels)
    usable = metrics.placed(kernels) & (places >= 0)
    names = kernels["name"]
    pairs = names.codes.astype(np.int64) * max(len(shapes), 1) + places
    found = []
    for pair in np.unique(pairs[usable]).tolist():
        code, place = divmod(pair, len(shapes))
        durations = np.sort(kernels["dur_ns"][usable & (pairs == pair)])
        found.append(_gemm(names.values[code], shapes[place], durations))
    return sorted(found, key=lambda row: -row["total_ns"])


_BYTES = {"f32": 4, "f64": 8, "f16": 2, "bf16": 2, "i8": 1, "i32": 4, "xf32": 4}


def _gemm(name: str, shape: tuple[int, int, int], durations: np.ndarray) -> dict[str, Any]:
    m, n, k = shape
    median = float(np.median(durations))
    said = decode_gemm(name)
    sizes = (
        [_size(getattr(said, part, None)) for part in ("dtype_a", "dtype_b", "dtype_out")] if said else [None]
    )
    moved = None
    if len(sizes) == 3 and None not in sizes:
        moved = m * k * sizes[0] + k * n * sizes[1] + m * n * sizes[2]  # type: ignore[operator]
    return {
        "name": name,
        "shape": [m, n, k],
        "calls": len(durations),
        "total_ns": int(durations.sum()),
        "median_ns": median,
        "flop": 2 * m * n * k,
        "bytes": moved,
        "tflops": 2 * m * n * k / median / 1e3 if median else None,
        "tb_per_s": moved / median / 1e3 if moved and median else None,
    }


def _size(dtype: str | None) -> int | None:
    return 1 if dtype and dtype.startswith(("f8", "b8")) else _BYTES.get(dtype or "")


def _longest(kernels: Kernels, kind: str, count: int = 5) -> list[int]:
    column = kernels["kind"]
    code = column.values.index(kind) if kind in column.values else -2
    return [
        int(ns)
        for ns in np.sort(kernels["dur_ns"][metrics.placed(kernels) & (column.codes == code)])[::-1][:count]
    ]
