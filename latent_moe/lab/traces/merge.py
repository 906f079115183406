"""The files of one recording put together: ranks told apart, shards added up, nothing counted twice."""

import re

import numpy as np

from latent_moe.lab.traces.file_trace import Calls, Part, launches
from latent_moe.lab.traces.table import Coded, Kernels, Ranges, constant

_RANK = re.compile(r"rank[-_ ]?(\d+)", re.IGNORECASE)
_PREFERENCE = (
    "rocpd",
    "rocprofv3 JSON",
    "rocprofv3 CSV",
    "Perfetto trace",
    "rocprof v1 database",
    "rocprof v1 CSV",
)
# Two files hold the same run when at least this share of one's kernels is found, to the nanosecond, in the other.
_SAME = 0.5


def rank_of(part: Part) -> int:
    """The rank a file says it is of, else the one its path names, else -1."""
    if part.rank >= 0:
        return part.rank
    for name in (part.path.name, *(folder.name for folder in part.path.parents)):
        if match := _RANK.search(name):
            return int(match[1])
    return -1


def name_ranks(parts: list[Part]) -> None:
    """Fill rank and source; equal process ids of different ranks (containers) become different processes."""
    for part in parts:
        part.rank = rank_of(part)
        n = len(part.kernels)
        part.kernels["rank"] = np.broadcast_to(np.int64(part.rank), n)
        part.kernels["source"] = constant(str(part.path), n)
    ranks: dict[str, set[int]] = {}
    for part in parts:
        for process in part.kernels["process"].values:
            ranks.setdefault(process, set()).add(part.rank)
    shared = {process for process, known in ranks.items() if len(known) > 1}
    for part in parts:
        for table in (part.kernels, part.ranges, part.calls):
            if shared & set(table["process"].values):
                table["process"] = _apart(table["process"], shared, part.rank)


def _apart(column: Coded, shared: set[str], rank: int) -> Coded:
    return column.map(
        [f"{value} (rank {rank})" if value in shared and rank >= 0 else value for value in column.values]
    )


def distinct(parts: list[Part]) -> tuple[list[Part], list[tuple[Part, Part]]]:
    """(parts to count, [(part left out, the part that holds its kernels)])."""
    kept: list[Part] = []
    dropped = []
    for part in sorted(parts, key=_order):
        same = next((other for other in kept if _same_run(part, other)), None)
        if same is None:
            kept.append(part)
        else:
            dropped.append((part, same))
            _adopt(same, part)
    return [part for part in parts if part in kept], dropped


def _order(part: Part) -> tuple:
    averaged = bool(np.any(part.kernels["averaged"]))
    place = _PREFERENCE.index(part.format) if part.format in _PREFERENCE else len(_PREFERENCE)
    return averaged, -len(part.kernels), place


def _same_run(part: Part, other: Part) -> bool:
    if not len(part.kernels) or not len(other.kernels):
        return False
    if part.rank != other.rank and part.rank >= 0 and other.rank >= 0:
        return False
    if part.format == other.format and _stem(part) != _stem(other):
        return False
    if _averaged(part) and not _averaged(other):
        return "rocprof v1" in other.format
    return not _other_process(part, other) and _share(part.kernels, other.kernels) >= _SAME


def _averaged(part: Part) -> bool:
    return bool(np.any(part.kernels["averaged"]))


def _stem(part: Part) -> str:
    return part.path.name.removesuffix(".gz")


def _other_process(part: Part, other: Part) -> bool:
    """Do both know process ids, and none in common? An export numbers its processes anew."""
    if "exported table" in (part.format, other.format):
        return False
    one, two = (set(p.kernels["process"].values) for p in (part, other))
    known = all(name.isdigit() for name in one | two)
    return known and not one & two


def _share(kernels: Kernels, other: Kernels) -> float:
    mine, theirs = (k["start_ns"][k["timed"]] * 1_000_003 + k["dur_ns"][k["timed"]] for k in (kernels, other))
    return float(np.isin(mine, theirs).mean()) if len(mine) else 0.0


def _adopt(kept: Part, dropped: Part) -> None:
    """Ranges that only the left-out file has stay, under the kept file's process where each knows one."""
    names = kept.kernels["process"].values
    if len(kept.ranges) or not len(dropped.ranges) or len(names) != 1:
        return
    kept.ranges = dropped.ranges
    kept.ranges["process"] = constant(names[0], len(dropped.ranges))


def joined(parts: list[Part]) -> tuple[Kernels, Ranges]:
    """All kernels and ranges; launches found in other files (API traces) are joined to their kernels."""
    kernels = Kernels.concatenate([part.kernels for part in parts if len(part.kernels)] or [Kernels(0)])
    ranges = [part.ranges for part in parts if len(part.ranges)]
    calls = [part.calls for part in parts if len(part.calls) and not len(part.kernels)]
    if calls and len(kernels):
        launches(kernels, Calls.concatenate(calls))
    return kernels, once(Ranges.concatenate(ranges)) if ranges else Ranges(0)


def once(ranges: Ranges) -> Ranges:
    """Each range once, also where a marker CSV lies beside the database that holds the same ranges."""
    keys = np.stack([ranges["start_ns"], ranges["end_ns"], ranges["name"].codes, ranges["agent"].codes])
    first = np.sort(np.unique(keys, axis=1, return_index=True)[1])
    return ranges if len(first) == len(ranges) else ranges.take(first)
