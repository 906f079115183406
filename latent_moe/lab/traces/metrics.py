"""Figures of a kernel table. Sum and union of intervals are both kept and never mixed: `total_ns` adds durations,
`busy_ns` is the time in which at least one kernel ran. All times in nanoseconds."""

import math
from dataclasses import dataclass

import numpy as np

from latent_moe.lab.traces.table import Coded, Kernels, encode, group_codes

DEVICE = ("process", "agent")
QUEUE = ("process", "agent", "queue")
_FAR_BEYOND, _FEW_SHARE = 5, 0.1


@dataclass(frozen=True)
class KernelRow:
    """One group of kernels. mean_ns, median_ns and p90_ns are per call, max_ns and second_ns are the two longest; None
    where no call has a time of its own. `carried_by`: so few calls (at most a tenth, each beyond five medians) hold more
    than half of the time, and so most of the mean; None where the time is spread."""

    key: str
    calls: int
    total_ns: int
    mean_ns: float | None
    median_ns: float | None
    untimed_calls: int = 0
    max_ns: int | None = None
    second_ns: int | None = None
    p90_ns: float | None = None
    carried_by: int | None = None


def calls(kernels: Kernels) -> int:
    """Kernels with a time."""
    return int(np.count_nonzero(kernels["timed"]))


def total_ns(kernels: Kernels) -> int:
    """Sum of durations over all kernels with a time."""
    return int(kernels["dur_ns"].sum())


def union_ns(start: np.ndarray, end: np.ndarray) -> int:
    """Length of the union of the intervals [start, end)."""
    if not len(start):
        return 0
    order = np.argsort(start, kind="stable")
    start, end = start[order], np.maximum.accumulate(end[order])
    # A new stretch begins where an interval starts behind the latest end so far.
    gap = np.maximum(start[1:] - end[:-1], 0)
    return int(end[-1] - start[0] - gap.sum())


def placed(kernels: Kernels) -> np.ndarray:
    """Mask of the kernels whose begin and end are known."""
    return np.asarray(kernels["timed"]) & ~np.asarray(kernels["averaged"])


def busy_by(kernels: Kernels, columns: tuple[str, ...] = DEVICE) -> list[tuple[dict, int, int, int]]:
    """For each combination of the columns: ({column: text}, calls, total_ns, busy_ns)."""
    rows = np.flatnonzero(placed(kernels))
    codes = group_codes(kernels, columns)[rows]
    # Grouped by a stable sort; inside a group the union sorts by start.
    order = np.argsort(codes, kind="stable")
    rows, codes = rows[order], codes[order]
    firsts = np.flatnonzero(np.r_[True, codes[1:] != codes[:-1]]) if len(codes) else np.zeros(0, int)
    lasts = [*firsts[1:], len(codes)] if len(firsts) else []
    found = []
    for first, last in zip(firsts, lasts, strict=True):
        mine = rows[first:last]
        key = {name: _text(kernels[name], mine[0]) for name in columns}
        busy = union_ns(kernels["start_ns"][mine], kernels["end_ns"][mine])
        found.append((key, len(mine), int(kernels["dur_ns"][mine].sum()), busy))
    return found


def _text(column: Coded, row: int) -> str | None:
    code = int(column.codes[row])
    return column.values[code] if code >= 0 else None


def busy_ns(kernels: Kernels) -> int | None:
    """Time in which a device ran at least one kernel, summed over the devices (process and agent); None where begin
    and end are not known (statistics)."""
    if np.any(kernels["averaged"]):
        return None
    return sum(busy for *_, busy in busy_by(kernels))


@dataclass(frozen=True)
class Gap:
    """A stretch in which a device ran nothing. `waited_for` is "host" where the next kernel was launched after the last
    one had ended, "queue" where it had been launched before, None where launches are not recorded."""

    process: str | None
    agent: str | None
    start_ns: int
    gap_ns: int
    before: str | None
    after: str | None
    waited_for: str | None


def idle_ns(kernels: Kernels) -> int | None:
    """Time without a kernel between the first and the last of each device, summed over the devices; None for statistics."""
    if np.any(kernels["averaged"]):
        return None
    return sum(int(gaps.sum()) for _, gaps in _gaps(kernels))


def largest_gaps(kernels: Kernels, most: int = 5) -> list[Gap]:
    """The longest stretches without a kernel, the longest first."""
    found = []
    for rows, gaps in _gaps(kernels):
        for place in np.argsort(-gaps, kind="stable")[:most]:
            if gaps[place] > 0:
                found.append(_gap(kernels, rows, int(place), int(gaps[place])))
    return sorted(found, key=lambda gap: -gap.gap_ns)[:most]


def _gaps(kernels: Kernels) -> list[tuple[np.ndarray, np.ndarray]]:
    """For each device its rows in order of start, and the idle time in front of every one but the first."""
    rows = np.flatnonzero(placed(kernels))
    devices = group_codes(kernels, DEVICE)[rows]
    start, end = kernels["start_ns"][rows], kernels["end_ns"][rows]
    order = np.lexsort((start, devices))
    rows, devices, start, end = rows[order], devices[order], start[order], end[order]
    bounds = np.flatnonzero(np.r_[True, devices[1:] != devices[:-1]]) if len(rows) else np.zeros(0, int)
    found = []
    for first, last in zip(bounds, [*bounds[1:], len(rows)], strict=False):
        latest = np.maximum.accumulate(end[first:last])
        found.append((rows[first:last], np.maximum(start[first + 1 : last] - latest[:-1], 0)))
    return found


def _gap(kernels: Kernels, rows: np.ndarray, place: int, length: int) -> Gap:
    after = rows[place + 1]
    start = int(kernels["start_ns"][after]) - length
    before = rows[: place + 1][np.argmax(kernels["end_ns"][rows[: place + 1]])]
    launch = int(kernels["launch_ns"][after])
    waited = None if launch < 0 else "host" if launch >= start else "queue"
    process, agent, next_name = (_text(kernels[name], after) for name in (*DEVICE, "name"))
    return Gap(process, agent, start, length, _text(kernels["name"], before), next_name, waited)


def span_ns(kernels: Kernels) -> int:
    """From the first kernel's begin to the last one's end."""
    mask = placed(kernels)
    return int(kernels["end_ns"][mask].max() - kernels["start_ns"][mask].min()) if mask.any() else 0


def group(kernels: Kernels, column: str | Coded) -> list[KernelRow]:
    """One `KernelRow` per text of a column (absent: "(none)"), the largest total first; "rank" groups as `ranks` says."""
    key = ranks(kernels) if column == "rank" else kernels[column] if isinstance(column, str) else column
    timed = np.asarray(kernels["timed"])
    averaged = bool(np.any(kernels["averaged"]))
    codes, durations = key.codes[timed], kernels["dur_ns"][timed]
    order = np.lexsort((durations, codes))
    codes, durations = codes[order], durations[order]
    firsts = np.flatnonzero(np.r_[True, codes[1:] != codes[:-1]]) if len(codes) else np.zeros(0, int)
    lasts = np.r_[firsts[1:], len(codes)] if len(firsts) else firsts
    missing = np.bincount(key.codes[~timed] + 1, minlength=len(key.values) + 1)
    rows = [
        _row(key, int(codes[a]), durations[a:b], averaged, missing)
        for a, b in zip(firsts, lasts, strict=True)
    ]
    seen = set(np.unique(codes).tolist())
    rows += [
        KernelRow(_key(key, c - 1), 0, 0, None, None, int(missing[c]))
        for c in np.flatnonzero(missing)
        if c - 1 not in seen
    ]
    return sorted(rows, key=lambda row: (-row.total_ns, row.key))


def _key(column: Coded, code: int) -> str:
    return column.values[code] if code >= 0 else "(none)"


def _row(column: Coded, code: int, durations: np.ndarray, averaged: bool, missing: np.ndarray) -> KernelRow:
    """A row from the sorted durations of one group."""
    n, total = len(durations), int(durations.sum())
    median = None if averaged else (int(durations[(n - 1) // 2]) + int(durations[n // 2])) / 2
    longest, second = (None if averaged or n < place else int(durations[-place]) for place in (1, 2))
    p90 = None if averaged else float(durations[math.ceil(0.9 * n) - 1])
    text = _key(column, code)
    return KernelRow(
        *(text, n, total, total / n, median, int(missing[code + 1])),
        *(longest, second, p90, None if median is None else _carriers(durations, median)),
    )


def _carriers(durations: np.ndarray, median: float) -> int | None:
    """How many of the sorted durations carry their mean; None where they do not."""
    count = len(durations) - int(np.searchsorted(durations, _FAR_BEYOND * median, side="right"))
    few = 0 < count <= _FEW_SHARE * len(durations)
    return count if few and int(durations[-count:].sum()) > durations.sum() / 2 else None


def ranks(kernels: Kernels) -> Coded:
    """ "rank 3" where the recording says which rank it is; else process and agent, which a rank of its own has."""
    known, rank = np.unique(kernels["rank"], return_inverse=True)
    codes = group_codes(kernels, DEVICE)
    _, first, device = np.unique(codes, return_index=True, return_inverse=True)
    names = [f"process {_text(kernels['process'], row)}, {_text(kernels['agent'], row)}" for row in first]
    texts = [f"rank {value}" for value in known] + names
    mixed = np.where(np.asarray(kernels["rank"]) >= 0, rank.reshape(-1), len(known) + device.reshape(-1))
    return Coded(mixed, texts)


def shapes(kernels: Kernels) -> Coded:
    """ "M=16 N=896 K=3584" of the kernels whose GEMM's sizes are known, else absent."""
    sizes = np.stack([np.asarray(kernels[name]) for name in "MNK"], axis=1)
    unique, inverse = np.unique(sizes, axis=0, return_inverse=True)
    texts = [f"M={m} N={n} K={k}" if min(m, n, k) >= 0 else None for m, n, k in unique.tolist()]
    column = encode(texts)
    return Coded(column.codes[inverse.reshape(-1)], column.values)


def streams(kernels: Kernels) -> Coded:
    """Device, queue and stream of each kernel as one text."""
    codes = group_codes(kernels, (*QUEUE, "stream"))
    _, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
    texts = [
        ", ".join(
            f"{name} {_text(kernels[name], row)}"
            for name in (*QUEUE, "stream")
            if _text(kernels[name], row) is not None
        )
        for row in first
    ]
    column = encode(texts)
    return Coded(column.codes[inverse.reshape(-1)], column.values)


def share(kernels: Kernels, column: str, text: str) -> float | None:
    """The share of the total time whose column holds the text; None where no kernel has a time."""
    key, total = kernels[column], total_ns(kernels)
    if not total:
        return None
    codes = [code for code, value in enumerate(key.values) if value == text]
    return int(kernels["dur_ns"][np.isin(key.codes, codes)].sum()) / total
