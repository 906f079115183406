"""Spans that cannot be: a kernel still running when two of its successors on the same queue have started.

The small overlaps that real queues show (one successor) are left as they are. An impossible span is clipped to its
first successor's start, flagged, and never reported as measured time.
"""

import numpy as np

from latent_moe.lab.traces.table import Kernels, group_codes


def clip(kernels: Kernels) -> tuple[int, int]:
    """Clip in place; returns (how many spans were clipped, nanoseconds taken off)."""
    rows = np.flatnonzero(np.asarray(kernels["timed"]) & ~np.asarray(kernels["averaged"]))
    if len(rows) < 3:
        return 0, 0
    queue = queues(kernels)[rows]
    start, end = kernels["start_ns"][rows], kernels["end_ns"][rows]
    order = np.lexsort((end, start, queue))
    queue, start, end = queue[order], start[order], end[order]
    bad = np.flatnonzero((queue[2:] == queue[:-2]) & (start[2:] < end[:-2]))
    if not len(bad):
        return 0, 0
    clipped = rows[order[bad]]
    before = int(kernels["dur_ns"][clipped].sum())
    end_ns, dur_ns, flagged = (np.array(kernels[name]) for name in ("end_ns", "dur_ns", "flagged"))
    end_ns[clipped] = start[bad + 1]
    dur_ns[clipped] = start[bad + 1] - start[bad]
    flagged[clipped] = True
    kernels["end_ns"], kernels["dur_ns"], kernels["flagged"] = end_ns, dur_ns, flagged
    return len(bad), before - int(dur_ns[clipped].sum())


def queues(kernels: Kernels) -> np.ndarray:
    """One number per (process, agent, queue)."""
    return group_codes(kernels, ("process", "agent", "queue"))
