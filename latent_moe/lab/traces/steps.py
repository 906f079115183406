"""Steps of a recording, and the marks that a workload leaves in its region names: which tail, how many tokens, which step.

Steps are the profiler's own `ProfilerStep#N` ranges, ranges called "step N", or the marks of this project's workload,
which calls its regions `tail=column_parallel T=16 step=3 M=16 N=896 K=3584`.
"""

import re
from collections import Counter
from dataclasses import dataclass

import numpy as np

from latent_moe.lab.traces.file_trace import shared_codes
from latent_moe.lab.traces.layer_fold import layer_of
from latent_moe.lab.traces.metrics import busy_ns, total_ns
from latent_moe.lab.traces.regions import innermost_by_key
from latent_moe.lab.traces.table import Coded, Trace

STEP = re.compile(r"(?:ProfilerStep#|step[ _#:=]?)(\d+)$", re.IGNORECASE)


@dataclass(frozen=True)
class StepTimes:
    """Steps, and the time of their kernels per step, over all devices."""

    count: int
    total_ns_per_step: float
    busy_ns_per_step: float


def steps(trace: Trace) -> StepTimes | None:
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
    return StepTimes(count, total_ns(mine) / count, (busy_ns(mine) or 0) / count) if inside.any() else None


_MARK = re.compile(r"(\w+)=([\w.\-]+)")


def marks(region: str) -> dict[str, str]:
    """{"tail": "column_parallel", "T": "16", "step": "3", ...} from a region's name; empty without marks."""
    return dict(_MARK.findall(region))


@dataclass(frozen=True)
class MarkedSteps:
    """Steps of a recording. `mix` counts them by what they hold ("T=16": 8), empty where the profiler, not the workload,
    marks them. `regular`: steps that hold the same ran equally many kernels of each kind, so none was lost."""

    count: int
    mix: dict[str, int]
    regular: bool


def marked_steps(trace: Trace) -> MarkedSteps | None:
    """The profiler's own steps, else those that region names tell; None without either."""
    found = steps(trace)
    if found:
        return MarkedSteps(found.count, {}, False)
    column = trace.kernels["region"]
    named = {code: marks(name) for code, name in enumerate(column.values) if "step" in marks(name)}
    present = [code for code in np.unique(column.codes).tolist() if code in named]
    if not present:
        return None
    mix = Counter(f"T={named[code].get('T', '?')}" for code in present)
    return MarkedSteps(
        len(present), dict(sorted(mix.items())), _regular(trace, {code: named[code] for code in present})
    )


def _regular(trace: Trace, named: dict[int, dict[str, str]]) -> bool:
    kinds, region = trace.kernels["kind"].codes, trace.kernels["region"].codes
    wide = len(trace.kernels["kind"].values) + 1
    counts = np.bincount(
        (region + 1) * wide + kinds + 1, minlength=(len(trace.kernels["region"].values) + 1) * wide
    )
    rows = counts.reshape(-1, wide)
    seen: dict[tuple, bytes] = {}
    for code, found in named.items():
        alike = (found.get("tail"), found.get("T"))
        if seen.setdefault(alike, rows[code + 1].tobytes()) != rows[code + 1].tobytes():
            return False
    return True


def in_steps(trace: Trace) -> Trace:
    """Only the kernels of steps that region names tell; the trace itself where none does."""
    column = trace.kernels["region"]
    stepped = np.array([*("step" in marks(name) for name in column.values), False])[column.codes]
    return _with(trace, stepped) if stepped.any() else trace


def select(trace: Trace, **wanted: str | int) -> Trace:
    """The kernels in regions with these marks: select(trace, tail="overlap", T=16).

    Warnings and files are kept. Kernels outside any region are left out.
    """
    column = trace.kernels["region"]
    texts = {name: str(value) for name, value in wanted.items()}
    fits = [texts.items() <= marks(name).items() for name in column.values]
    return _with(trace, np.array([*fits, False])[column.codes])


def _with(trace: Trace, rows: np.ndarray) -> Trace:
    kernels = trace.kernels.take(rows)
    return Trace(kernels, trace.ranges, list(trace.warnings), trace.partial, trace.files, trace.formats)


_LAYER = re.compile(r"(?:^|[._ ])layers?[._= ]?(\d+)", re.IGNORECASE)


def layers(trace: Trace) -> Coded:
    """ "layer 3" of the kernels whose region names a layer; where none does, of those that repeat as layers do."""
    if not any(_LAYER.search(name) for name in trace.kernels["region"].values):
        return layer_of(trace.kernels)
    return trace.kernels["region"].map(
        [
            f"layer {match[1]}" if (match := _LAYER.search(name)) else None
            for name in trace.kernels["region"].values
        ]
    )


def step_of(trace: Trace) -> Coded:
    """ "step 3" of each kernel: the profiler's own range around its launch (its start, where that is unknown), else the
    mark in its region; absent outside of steps."""
    ranges, kernels = trace.ranges, trace.kernels
    names = ranges["name"]
    rows = np.flatnonzero(np.array([bool(STEP.match(name)) for name in names.values] + [False])[names.codes])
    rows = rows[ranges["domain"].objects()[rows] == "host"] if len(rows) else rows
    if not len(rows):
        region = kernels["region"]
        told = [marks(name).get("step") for name in region.values]
        return region.map([None if number is None else f"step {number}" for number in told])
    mine, theirs = shared_codes(kernels["process"], ranges["process"])
    launch = np.asarray(kernels["launch_ns"])
    moments = np.where(launch >= 0, launch, kernels["start_ns"])
    found = innermost_by_key(theirs[rows], ranges["start_ns"][rows], ranges["end_ns"][rows], mine, moments)
    codes = np.where(found >= 0, names.codes[rows[np.maximum(found, 0)]], -1)
    texts = [f"step {match[1]}" if (match := STEP.match(name)) else None for name in names.values]
    return Coded(codes, names.values).map(texts)
