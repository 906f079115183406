"""PyTorch's operators in a profiler's JSON: the one that launched a kernel, and those that stand in for kernels.

A kernel's op is found by the profiler's external id, else it is the innermost op around the launch. In a recording of
the CPU alone a row is an operator that computes (its name says so) and lies in no other such operator on its thread;
views and composites are looked through. gloo's own ranges are the collectives: c10d's operators only issue them.
"""

import numpy as np

from latent_moe.lab.traces.file_trace import FileTrace
from latent_moe.lab.traces.regions import innermost_by_key
from latent_moe.lab.traces.table import Coded, Kernels, constant, number_texts


def attach(kernels: Kernels, external: np.ndarray, ops) -> None:
    """Fill `op` and `dims` of the kernels from a table of ops (thread, start_ns, end_ns, external, op, dims); only
    those that recorded input sizes are asked."""
    ops = ops.take(ops["dims"].codes >= 0)
    if not len(kernels) or not len(ops):
        return
    rows = by_external(external, np.asarray(ops["external"]))
    unknown = rows < 0
    rows[unknown] = _around_launch(kernels, ops)[unknown]
    rows[_replayed(np.asarray(kernels["correlation"]))] = -1
    # A last, absent row for the kernels that no op was found for: index -1 takes it.
    for name in ("op", "dims"):
        column = ops[name]
        codes = np.append(column.codes, np.int32(-1))[rows]
        kernels[name] = type(column)(codes, column.values)


def _around_launch(kernels: Kernels, ops) -> np.ndarray:
    """The row of the innermost op on the launching thread, at the launch; -1 for none."""
    threads, moments = np.asarray(kernels["thread"]), np.asarray(kernels["launch_ns"])
    rows = innermost_by_key(ops["thread"], ops["start_ns"], ops["end_ns"], threads, moments)
    return np.where(moments >= 0, rows, -1)


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


_GLOO = "gloo:"


def cpu_kernels(part: FileTrace, ops) -> None:
    """Fill the part's kernels from its operators and gloo ranges, and say so in a warning."""
    computing = ops.take(_outermost(ops))
    gloo, rest = _gloo(part)
    tables = [_rows(computing, computing["op"], computing["dims"])]
    tables += [_rows(gloo, gloo["name"], constant(None, len(gloo)))] if len(gloo) else []
    part.kernels = Kernels.concatenate(tables)
    part.ranges = rest
    if len(part.kernels):
        part.warn("cpu_ops", "no device kernels: the CPU's own operators stand in for them")


def _outermost(ops) -> np.ndarray:
    """Rows of the computing ops that lie in no other computing op of their thread."""
    from latent_moe.lab.traces.kernel_names import COMPUTE_KINDS, classify

    kinds = classify(ops["op"].values).kind
    computes = np.array([kind in COMPUTE_KINDS for kind in kinds] + [False])
    rows = np.flatnonzero(computes[ops["op"].codes])
    rows = rows[np.lexsort((-ops["end_ns"][rows], ops["start_ns"][rows]))]
    threads = ops["thread"][rows]
    found = [_top(ops, rows[threads == thread]) for thread in np.unique(threads)]
    return np.sort(np.concatenate(found)) if found else rows


def _top(ops, rows: np.ndarray) -> np.ndarray:
    latest = np.maximum.accumulate(ops["end_ns"][rows])
    inside = np.r_[False, ops["start_ns"][rows][1:] < latest[:-1]]
    return rows[~inside]


def _gloo(part: FileTrace) -> tuple:
    """(gloo's ranges, all others)."""
    names = part.ranges["name"]
    is_gloo = np.array([name.startswith(_GLOO) for name in names.values] + [False])[names.codes]
    return part.ranges.take(is_gloo), part.ranges.take(~is_gloo)


def _rows(table, name: Coded, dims: Coded) -> Kernels:
    n, start, end = len(table), table["start_ns"], table["end_ns"]
    queue = number_texts(table["thread"])
    columns = {
        "host": table["host"],
        "agent": constant("CPU", n),
        "queue": queue,
        "stream": queue,
        "name": name,
        "op": name,
        "dims": dims,
        "thread": table["thread"],
        "launch_ns": start,
        "start_ns": start,
        "end_ns": end,
        "dur_ns": end - start,
        "timed": np.ones(n, dtype=bool),
    }
    return Kernels(n, columns)
