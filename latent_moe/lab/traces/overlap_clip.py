"""Spans that cannot be: a kernel still running when two of its successors on the same stream have started.

The small overlaps that real queues show (one successor) are left as they are, and so are streams that share a hardware
queue. A few impossible spans are clipped to their first successor's start, flagged, and never reported as measured
time. Where many spans are impossible the spans are right and their device is wrong: several devices were taken for one.
"""

import numpy as np

from latent_moe.errors import InputError
from latent_moe.lab.traces.table import Kernels, group_codes

STREAM = ("process", "agent", "queue", "stream")
# More stray spans than this share of a stream's kernels (and than a handful) are no accident.
MOST_CLIPPED, HANDFUL = 0.02, 3


def clip(kernels: Kernels) -> tuple[int, int]:
    """Clip in place; returns (how many spans were clipped, nanoseconds taken off).

    Raises InputError where so many spans of a stream are impossible that it must hold the kernels of several devices.
    """
    rows = np.flatnonzero(np.asarray(kernels["timed"]) & ~np.asarray(kernels["averaged"]))
    if len(rows) < 3:
        return 0, 0
    stream = group_codes(kernels, STREAM)[rows]
    start, end = kernels["start_ns"][rows], kernels["end_ns"][rows]
    order = np.lexsort((end, start, stream))
    stream, start, end = stream[order], start[order], end[order]
    bad = np.flatnonzero((stream[2:] == stream[:-2]) & (start[2:] < end[:-2]))
    if not len(bad):
        return 0, 0
    _check_share(kernels, rows[order], stream, bad)
    clipped = rows[order[bad]]
    before = int(kernels["dur_ns"][clipped].sum())
    end_ns, dur_ns, flagged = (np.array(kernels[name]) for name in ("end_ns", "dur_ns", "flagged"))
    end_ns[clipped] = start[bad + 1]
    dur_ns[clipped] = start[bad + 1] - start[bad]
    flagged[clipped] = True
    kernels["end_ns"], kernels["dur_ns"], kernels["flagged"] = end_ns, dur_ns, flagged
    return len(bad), before - int(dur_ns[clipped].sum())


def _check_share(kernels: Kernels, rows: np.ndarray, stream: np.ndarray, bad: np.ndarray) -> None:
    """rows, stream: every kernel in order; bad: the places among them of the impossible ones."""
    streams, count = np.unique(stream[bad], return_counts=True)
    sizes = np.searchsorted(stream, streams, side="right") - np.searchsorted(stream, streams)
    wrong = np.flatnonzero((count > HANDFUL) & (count > MOST_CLIPPED * sizes))
    if not len(wrong):
        return
    row = rows[np.searchsorted(stream, streams[wrong[0]])]
    texts = {name: kernels[name] for name in STREAM}
    place = ", ".join(
        f"{name} {column.values[column.codes[row]]}"
        for name, column in texts.items()
        if column.codes[row] >= 0
    )
    source = kernels["source"]
    where = f"{source.values[source.codes[row]]}: " if source.codes[row] >= 0 else ""
    raise InputError(
        f"{where}{count[wrong[0]]} of {sizes[wrong[0]]} kernels of {place} still ran when two successors had "
        "started: this is more than one device, and nothing in the file tells them apart"
    )
