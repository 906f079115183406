"""Recordings of the CPU alone: the CPU's own operators stand in for device kernels.

A row is an operator that computes (its name says so) and lies in no other such operator on its thread; views and
composites are looked through. gloo's own ranges are the collectives: c10d's operators only issue them.
"""

import numpy as np

from latent_moe.lab.traces.file_trace import Part
from latent_moe.lab.traces.table import Coded, Kernels, constant, number_texts

_GLOO = "gloo:"


def cpu_kernels(part: Part, ops, process: str) -> None:
    """Fill the part's kernels from its operators and gloo ranges, and say so in a warning."""
    computing = ops.take(_outermost(ops))
    gloo, rest = _gloo(part)
    tables = [_rows(computing, computing["op"], computing["dims"], process)]
    tables += [_rows(gloo, gloo["name"], constant(None, len(gloo)), process)] if len(gloo) else []
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


def _gloo(part: Part) -> tuple:
    """(gloo's ranges, all others)."""
    names = part.ranges["name"]
    is_gloo = np.array([name.startswith(_GLOO) for name in names.values] + [False])[names.codes]
    return part.ranges.take(is_gloo), part.ranges.take(~is_gloo)


def _rows(table, name: Coded, dims: Coded, process: str) -> Kernels:
    n, start, end = len(table), table["start_ns"], table["end_ns"]
    queue = number_texts(table["thread"])
    columns = {
        "process": constant(process, n),
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
