"""Which PyTorch op launched a kernel: by the profiler's external id, else the innermost op around the launch."""

import numpy as np

from latent_moe.lab.traces.table import Kernels


def attach(kernels: Kernels, external: np.ndarray, ops) -> None:
    """Fill `op` and `dims` of the kernels from a table of ops (thread, start_ns, end_ns, external, op, dims); only
    those that recorded input sizes are asked."""
    ops = ops.take(ops["dims"].codes >= 0)
    if not len(kernels) or not len(ops):
        return
    rows = by_external(external, np.asarray(ops["external"]))
    unknown = rows < 0
    rows[unknown] = innermost(kernels["thread"][unknown], kernels["launch_ns"][unknown], ops)
    rows[_replayed(np.asarray(kernels["correlation"]))] = -1
    # A last, absent row for the kernels that no op was found for: index -1 takes it.
    for name in ("op", "dims"):
        column = ops[name]
        codes = np.append(column.codes, np.int32(-1))[rows]
        kernels[name] = type(column)(codes, column.values)


def _replayed(correlation: np.ndarray) -> np.ndarray:
    """Kernels that share their launch with others: a graph replay, whose op around the launch says nothing of them."""
    _, place, count = np.unique(correlation, return_inverse=True, return_counts=True)
    return count[place.reshape(-1)] > 1


def by_external(wanted: np.ndarray, external: np.ndarray) -> np.ndarray:
    """The op row with the wanted external id, -1 where none has it."""
    order = np.argsort(external, kind="stable")
    place = np.minimum(np.searchsorted(external[order], wanted), len(order) - 1)
    rows = order[place]
    return np.where((external[rows] == wanted) & (wanted > 0), rows, -1)


def innermost(thread: np.ndarray, time_ns: np.ndarray, ops) -> np.ndarray:
    """The op row of the same thread that encloses the time most closely, -1 for none."""
    rows = np.full(len(thread), -1)
    for one in np.unique(thread[time_ns >= 0]):
        mine = np.flatnonzero(np.asarray(ops["thread"]) == one)
        asked = np.flatnonzero((thread == one) & (time_ns >= 0))
        rows[asked] = _enclosing(time_ns[asked], ops["start_ns"][mine], ops["end_ns"][mine], mine)
    return rows


def _enclosing(time_ns: np.ndarray, start: np.ndarray, end: np.ndarray, rows: np.ndarray) -> np.ndarray:
    if not len(start):
        return np.full(len(time_ns), -1)
    order = np.lexsort((-end, start))
    start, end = start[order], end[order]
    parent = _parents(start, end)
    place = np.searchsorted(start, time_ns, side="right") - 1
    # Climb from the last op begun before the launch to the first around it that had not ended.
    while (outside := (place >= 0) & (end[place] < time_ns)).any():
        place[outside] = parent[place[outside]]
    return np.where(place >= 0, rows[order[place]], -1)


def _parents(start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """The op around each op, for ops in order of start that nest; -1 at the top."""
    parents = np.full(len(start), -1)
    open_rows: list[int] = []
    ends = end.tolist()
    for row, begin in enumerate(start.tolist()):
        while open_rows and ends[open_rows[-1]] <= begin:
            open_rows.pop()
        if open_rows:
            parents[row] = open_rows[-1]
        open_rows.append(row)
    return parents
