"""Regions: named ranges (ROCTX, NVTX, record_function) joined to the kernels launched inside them; GEMM shapes.

A kernel's region is, in this order: what its record names itself; the range whose correlation id it carries; the
innermost range on its host thread when it was launched; the innermost device range of its stream; and for records
without any of that, the innermost range of its process at the launch, or at the kernel's own start where the launch is
not known. The last is right for synchronous work and a guess where the device runs behind the host.
"""

import re

import numpy as np

from latent_moe.lab.traces.shapes import gemm_shapes
from latent_moe.lab.traces.spans import innermost_by_key
from latent_moe.lab.traces.table import Coded, Kernels, Ranges, encode

# Steps are counted elsewhere, and c10d's annotations name a collective, not a part of somebody's program.
_NOT_A_REGION = re.compile(r"ProfilerStep#|(?:nccl|gloo|ucc|mpi|xccl):")


def join_regions(kernels: Kernels, ranges: Ranges) -> dict[str, Coded | np.ndarray]:
    """{"region": Coded, "M", "N", "K": int64[n], -1 where missing} for the n kernels.

    M, N, K are the GEMM's out[M, N] = a[M, K] @ b[K, N], tokens first, given to kernels of kind gemm only: from the
    profiler's input dimensions, else from a region's name that says `M=.. N=.. K=..`, else missing.
    """
    region = _merge(kernels["region"], _owners(kernels, _usable(ranges)), _usable(ranges)["name"])
    m, n, k = gemm_shapes(kernels, region)
    return {"region": region, "M": m, "N": n, "K": k}


def _usable(ranges: Ranges) -> Ranges:
    names = ranges["name"]
    good = np.array([not _NOT_A_REGION.match(value) for value in names.values] + [False])[names.codes]
    return ranges if bool(good.all()) else ranges.take(good)


def _owners(kernels: Kernels, ranges: Ranges) -> np.ndarray:
    """The row of each kernel's range, -1 where it has none."""
    owner = np.full(len(kernels), -1, dtype=np.int64)
    if not len(ranges):
        return owner
    host = _rows(ranges, "host")
    for join in (_by_correlation, _by_launch, _by_device_range, _by_time):
        open_rows = np.flatnonzero((owner < 0) & (kernels["region"].codes < 0))
        if not len(open_rows):
            break
        owner[open_rows] = join(kernels, ranges, host, open_rows)
    return owner


def _rows(ranges: Ranges, domain: str) -> np.ndarray:
    """Rows of one domain; a range without a domain is a host range."""
    column = ranges["domain"]
    is_device = np.array([value == "device" for value in column.values] + [False])[column.codes]
    return np.flatnonzero(is_device if domain == "device" else ~is_device)


def _by_correlation(kernels, ranges, host, rows) -> np.ndarray:
    """The range whose correlation id the kernel carries: its launch's parent first, else its own."""
    wanted = np.asarray(ranges["correlation"])[host]
    named = host[wanted != 0]
    if not len(named):
        return np.full(len(rows), -1)
    span, mine = _process_codes(kernels, ranges)
    keys = _pairs(span[named], np.asarray(ranges["correlation"])[named])
    order = np.argsort(keys, kind="stable")
    found = np.full(len(rows), -1)
    for column in ("parent", "correlation"):
        ids = np.asarray(kernels[column])[rows]
        asked = _pairs(mine[rows], ids)
        place = np.minimum(np.searchsorted(keys[order], asked), len(keys) - 1)
        hit = (keys[order][place] == asked) & (ids != 0) & (found < 0)
        found = np.where(hit, named[order][place], found)
    return found


def _by_launch(kernels, ranges, host, rows) -> np.ndarray:
    """The innermost host range on the launching thread, at the launch."""
    known = (np.asarray(kernels["launch_ns"])[rows] >= 0) & (np.asarray(kernels["thread"])[rows] >= 0)
    span, mine = _process_codes(kernels, ranges)
    span_keys, keys = _shared_keys(
        (span[host], np.asarray(ranges["thread"])[host]), (mine[rows], np.asarray(kernels["thread"])[rows])
    )
    return _innermost(ranges, host, span_keys, np.where(known, keys, -1), kernels["launch_ns"][rows])


def _by_device_range(kernels, ranges, host, rows) -> np.ndarray:
    """The innermost range that the profiler laid over the kernel's own stream."""
    device = _rows(ranges, "device")
    if not len(device):
        return np.full(len(rows), -1)
    columns = [_codes_of_both(kernels[name], ranges[name]) for name in ("process", "agent", "stream")]
    span_keys, keys = _shared_keys(
        tuple(span[device] for span, _ in columns), tuple(mine[rows] for _, mine in columns)
    )
    timed = np.asarray(kernels["timed"])[rows]
    return _innermost(ranges, device, span_keys, np.where(timed, keys, -1), kernels["start_ns"][rows])


def _by_time(kernels, ranges, host, rows) -> np.ndarray:
    """The innermost host range of the process at the launch, or at the kernel's start where that is unknown."""
    span, mine = _process_codes(kernels, ranges)
    launch = np.asarray(kernels["launch_ns"])[rows]
    moments = np.where(launch >= 0, launch, kernels["start_ns"][rows])
    known = (launch >= 0) | np.asarray(kernels["timed"])[rows]
    return _innermost(ranges, host, span[host], np.where(known, mine[rows], -1), moments)


def _innermost(ranges, chosen, span_keys, keys, moments) -> np.ndarray:
    starts, ends = np.asarray(ranges["start_ns"])[chosen], np.asarray(ranges["end_ns"])[chosen]
    found = innermost_by_key(span_keys, starts, ends, keys, np.asarray(moments))
    return np.where(found >= 0, chosen[np.maximum(found, 0)], -1) if len(chosen) else found


def _process_codes(kernels, ranges) -> tuple[np.ndarray, np.ndarray]:
    return _codes_of_both(kernels["process"], ranges["process"])


def _codes_of_both(of_kernels: Coded, of_ranges: Coded) -> tuple[np.ndarray, np.ndarray]:
    """(ranges' codes, kernels' codes) in one dictionary. A missing text counts as a value of its own."""
    index = {text: code for code, text in enumerate(of_kernels.values)}
    places = np.array([index.setdefault(text, len(index)) for text in of_ranges.values] + [-1])
    return places[of_ranges.codes].astype(np.int64) + 1, of_kernels.codes.astype(np.int64) + 1


def _shared_keys(spans: tuple, kernels: tuple) -> tuple[np.ndarray, np.ndarray]:
    """One integer for each combination of the columns, the same on both sides."""
    span_keys = np.zeros(len(spans[0]), dtype=np.int64)
    keys = np.zeros(len(kernels[0]), dtype=np.int64)
    for span, mine in zip(spans, kernels, strict=True):
        values = np.unique(np.concatenate([np.unique(span), np.unique(mine)]))
        span_keys = span_keys * len(values) + np.searchsorted(values, span)
        keys = keys * len(values) + np.searchsorted(values, mine)
    return span_keys, keys


def _pairs(codes: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    # Correlation ids stay far below 2**48, so a pair fits one integer.
    return (codes.astype(np.int64) << 48) ^ numbers.astype(np.int64)


def _merge(prefilled: Coded, owner: np.ndarray, names: Coded) -> Coded:
    """The region's text: the record's own where it has one, else its range's name."""
    if not bool((owner >= 0).any()):
        return prefilled
    texts = encode([*prefilled.values, *names.values])
    first = len(prefilled.values)
    own = np.append(texts.codes[:first], -1)[prefilled.codes]
    ranged = np.append(texts.codes[first:], -1)[np.where(owner >= 0, names.codes[owner], -1)]
    return Coded(np.where(own >= 0, own, ranged).astype(np.int32), texts.values)
