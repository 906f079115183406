"""Regions: named ranges (ROCTX, NVTX, record_function) joined to the kernels launched inside them; GEMM shapes.

A kernel's region is, in this order: what its record names itself; the range whose correlation id it carries; the
innermost range on its host thread when it was launched; the innermost device range of its stream; and for records
without any of that, the innermost range of its process at the launch, or at the kernel's own start where the launch is
not known. The last is right for synchronous work and a guess where the device runs behind the host.
"""

import json
import math
import re

import numpy as np

from latent_moe.lab.traces.kernel_names import classify
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


def _by_device_range(kernels, ranges, host, rows) -> np.ndarray:  # noqa: ARG001 - as its siblings
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


def innermost(starts: np.ndarray, ends: np.ndarray, moments: np.ndarray) -> np.ndarray:
    """For each moment the row of the span around it that started last, -1 where none is.

    starts, ends [R] and moments [n] are nanoseconds; spans are closed at both ends and may nest, touch or cross.
    """
    if not len(starts):
        return np.full(len(moments), -1, dtype=np.int64)
    order = np.lexsort((-ends, starts))
    begin, owner = _timeline(starts[order], ends[order])
    place = np.searchsorted(begin, moments, side="right") - 1
    found = np.where(place >= 0, owner[np.maximum(place, 0)], -1)
    return np.where(found >= 0, order[np.maximum(found, 0)], -1)


def innermost_by_key(span_keys, starts, ends, keys, moments) -> np.ndarray:
    """As `innermost`, each moment only among the spans with its key (integers; spans [R], moments [n])."""
    rows = np.full(len(moments), -1, dtype=np.int64)
    span_order, span_keys = _sorted(span_keys)
    order, keys = _sorted(keys)
    for key in np.unique(span_keys):
        spans = span_order[slice(*np.searchsorted(span_keys, [key, key + 1]))]
        mine = order[slice(*np.searchsorted(keys, [key, key + 1]))]
        if len(mine):
            found = innermost(starts[spans], ends[spans], moments[mine])
            rows[mine] = np.where(found >= 0, spans[np.maximum(found, 0)], -1)
    return rows


def _sorted(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    order = np.argsort(keys, kind="stable")
    return order, keys[order]


def _timeline(starts: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where the span on top changes: (times, rows), row -1 between spans. Spans come sorted by start."""
    if len(starts) == 1 or bool((starts[1:] > ends[:-1]).all()):
        return _flat(starts, ends)
    times: list[int] = []
    rows: list[int] = []
    stack: list[int] = []
    span_ends = ends.tolist()
    for row, start in enumerate(starts.tolist()):
        _close(stack, span_ends, start, times, rows)
        stack.append(row)
        times.append(start)
        rows.append(row)
    _close(stack, span_ends, None, times, rows)
    return np.array(times, dtype=np.int64), np.array(rows, dtype=np.int64)


def _flat(starts, ends) -> tuple[np.ndarray, np.ndarray]:
    times = np.stack([starts, ends + 1], axis=1).reshape(-1)
    rows = np.stack([np.arange(len(starts)), np.full(len(starts), -1)], axis=1).reshape(-1)
    return times, rows


def _close(stack: list, ends: list, now: int | None, times: list, rows: list) -> None:
    """Take off the stack what has ended before `now` (None: everything), noting what comes to light."""
    while stack and (now is None or ends[stack[-1]] < now):
        over = ends[stack.pop()]
        while stack and ends[stack[-1]] <= over:
            stack.pop()
        times.append(over + 1)
        rows.append(stack[-1] if stack else -1)


Shape = tuple[int, int, int]
MISSING: Shape = (-1, -1, -1)
# Where an operator's two matrices stand among its inputs, and whether the second is stored [N, K].
_OPERANDS = {
    **dict.fromkeys(("mm", "bmm", "_scaled_mm", "_int_mm", "mv", "matmul"), (0, 1, False)),
    **dict.fromkeys(("addmm", "addmm_", "_addmm_activation", "baddbmm", "baddbmm_", "addmv"), (1, 2, False)),
    **dict.fromkeys(
        ("linear", "mkldnn_linear", "rocm_unquantized_gemm", "rocm_unquantized_gemm_impl"), (0, 1, True)
    ),
}
_NAMED = re.compile(r"(?:^|[^A-Za-z])([MNK])=(\d{1,12})(?!\d)")


def gemm_shapes(kernels: Kernels, region: Coded) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """M, N, K (int64 [n], -1 where missing) of the kernels of kind gemm."""
    shapes = _of_texts(region, from_region)
    dims = _from_dims(kernels["op"], kernels["dims"])
    shapes = np.where((dims >= 0).all(axis=1, keepdims=True), dims, shapes)
    shapes = np.where(_is_gemm(kernels["name"])[:, None], shapes, -1)
    return shapes[:, 0], shapes[:, 1], shapes[:, 2]


def from_region(name: str) -> Shape:
    """The shape that a region's name states as `M=16 N=896 K=3584`, in any order; all three or none."""
    stated = dict(_NAMED.findall(name))
    return tuple(int(stated[k]) for k in "MNK") if len(stated) == 3 else MISSING  # type: ignore[return-value]


def from_dims(op: str, dims: str) -> Shape:
    """The shape from a PyTorch operator's name and its "Input Dims" as JSON text; missing where they do not tell."""
    places = _OPERANDS.get(op.rsplit("::", 1)[-1])
    try:
        inputs = json.loads(dims)
        return MISSING if places is None else _product(inputs[places[0]], inputs[places[1]], places[2])
    except (ValueError, TypeError, IndexError, KeyError):
        return MISSING


def _product(a: list[int], b: list[int], transposed: bool) -> Shape:
    if not all(type(size) is int and 0 <= size < 1 << 40 for size in (*a, *b)):
        return MISSING
    if len(b) == 1:
        return math.prod(a[:-1]), 1, a[-1]
    k, n = (b[-1], b[-2]) if transposed else (b[-2], b[-1])
    batched = len(a) == 3 and len(b) == 3
    m = a[-2] if batched else math.prod(a[:-1])
    return (m, n, k) if a[-1] == k else MISSING


def _of_texts(column: Coded, read) -> np.ndarray:
    table = np.array([*map(read, column.values), MISSING], dtype=np.int64)
    return table[column.codes]


def _from_dims(op: Coded, dims: Coded) -> np.ndarray:
    pairs = np.where(
        (op.codes >= 0) & (dims.codes >= 0), op.codes.astype(np.int64) * len(dims.values) + dims.codes, -1
    )
    unique, inverse = np.unique(pairs, return_inverse=True)
    table = [
        from_dims(op.values[p // len(dims.values)], dims.values[p % len(dims.values)]) if p >= 0 else MISSING
        for p in unique.tolist()
    ]
    return np.array(table, dtype=np.int64).reshape(-1, 3)[inverse.reshape(-1)]


def _is_gemm(names: Coded) -> np.ndarray:
    return np.array([kind == "gemm" for kind in classify(names.values).kind] + [False])[names.codes]
