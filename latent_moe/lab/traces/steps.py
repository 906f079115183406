"""Steps of a recording: the profiler's own `ProfilerStep#N` ranges, or ranges called "step N"."""

import re
from dataclasses import dataclass

import numpy as np

from latent_moe.lab.traces.metrics import busy_ns, total_ns
from latent_moe.lab.traces.table import Trace

STEP = re.compile(r"(?:ProfilerStep#|step[ _#:=]?)(\d+)$", re.IGNORECASE)


@dataclass(frozen=True)
class Steps:
    """Steps found, and the time of their kernels per step, over all devices."""

    count: int
    total_ns_per_step: float
    busy_ns_per_step: float


def steps(trace: Trace) -> Steps | None:
    """Steps of a trace; None without step ranges, or where no kernel can be placed in one."""
    ranges, kernels = trace.ranges, trace.kernels
    names = ranges["name"]
    step = np.array([bool(STEP.match(name)) for name in names.values] + [False])
    rows = np.flatnonzero(step[names.codes])
    host = rows[ranges["domain"].objects()[rows] == "host"] if len(rows) else rows
    if not len(host):
        return None
    inside = np.zeros(len(kernels), dtype=bool)
    launched = np.where(np.asarray(kernels["launch_ns"]) >= 0, kernels["launch_ns"], kernels["start_ns"])
    process = kernels["process"].objects()
    owners = ranges["process"].objects()
    for row in host:
        within = (launched >= ranges["start_ns"][row]) & (launched < ranges["end_ns"][row])
        inside |= within & (process == owners[row]) & np.asarray(kernels["timed"])
    count = len({names.codes[row] for row in host})
    mine = kernels.take(inside)
    return Steps(count, total_ns(mine) / count, (busy_ns(mine) or 0) / count) if inside.any() else None
