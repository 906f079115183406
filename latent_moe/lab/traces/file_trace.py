"""One file's kernels, ranges and API calls as its reader hands them over, and the files of a recording put together."""

import re
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from latent_moe.errors import InputError
from latent_moe.lab.traces.table import Coded, Columns, Kernels, Ranges, TraceNote, constant, group_codes

# PyTorch names a file after host and process; rocprofv3 after the process, and what it holds.
_KINETO_NAME = re.compile(r"(.+)_(\d+)\.\d{10,}\.pt\.trace$")
_SUFFIX = re.compile(
    r"_(?:results|kernel|marker_api|hip_api|hsa_api|hip_runtime_api|hip_compiler_api|regions?)?(?:_trace)?$"
)
_ENDINGS = (".gz", ".json", ".csv", ".db", ".pftrace", ".trace", ".pt")
INT64 = np.iinfo(np.int64)


class Calls(Columns):
    """API calls on the host (hip*, cuda*), by which launches find their time and thread."""

    fields = ("host", "process", "thread", "start_ns", "correlation")


@dataclass(eq=False)
class FileTrace:
    """One file's kernels, ranges and API calls; a marker or API file has no kernels.

    `hosts` has names for what stands in the tables' `host`; `rank`, `replica` (its data-parallel engine) and `world_size`
    are -1 where nothing tells them; `base_ns` is what the file's times are relative to, None where it says nothing.
    """

    path: Path
    format: str
    kernels: Kernels
    ranges: Ranges = field(default_factory=lambda: Ranges(0))
    calls: Calls = field(default_factory=lambda: Calls(0))
    warnings: list[TraceNote] = field(default_factory=list)
    partial: bool = False
    rank: int = -1
    replica: int = -1
    world_size: int = -1
    base_ns: int | None = None
    hosts: dict[str, str] = field(default_factory=dict)
    device: str | None = None

    def shift(self, ns: int) -> None:
        """Move every time in the file by `ns`."""
        if "launch_ns" in self.kernels.columns:
            launch = self.kernels["launch_ns"]
            self.kernels["launch_ns"] = np.where(launch >= 0, launch + ns, launch)
        for table, names in (
            (self.kernels, ("start_ns", "end_ns")),
            (self.ranges, ("start_ns", "end_ns")),
            (self.calls, ("start_ns",)),
        ):
            moved = np.where(table["timed"], ns, 0) if table is self.kernels else ns
            for name in names if len(table) else ():
                table[name] = np.asarray(table[name]) + moved

    def warn(self, code: str, message: str) -> None:
        """Add one warning, which names the file."""
        self.warnings.append(TraceNote(code, f"{self.path.name}: {message}"))


def process_of(path: Path) -> tuple[str, str]:
    """(host, process) as far as a file's name tells; the process is the name itself where it tells none."""
    stem = path.name
    while (shorter := _without_ending(stem)) != stem:
        stem = shorter
    if match := _KINETO_NAME.match(f"{stem}.pt.trace"):
        return match[1], match[2]
    return "", _SUFFIX.sub("", stem) or stem


def _without_ending(name: str) -> str:
    return next((name.removesuffix(ending) for ending in _ENDINGS if name.endswith(ending)), name)


def times(values, path: Path, what: str) -> np.ndarray:
    """Whole nanoseconds as int64. Raises InputError for what is no whole number or does not fit."""
    try:
        column = np.array(values, dtype=np.int64)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{path}: {what} holds something that is no time in nanoseconds ({error})") from None
    if len(column) and not (-(1 << 62) < int(column.min()) <= int(column.max()) < 1 << 62):
        raise InputError(f"{path}: {what} holds a time beyond 146 years, so it is no nanosecond time stamp")
    return column


def ids(values, absent: int) -> np.ndarray:
    """Identifiers as int64; what is no such number (null, text, 2**64 - 1 for "none") becomes `absent`."""
    try:
        return np.array(values, dtype=np.int64)
    except (TypeError, ValueError, OverflowError):
        fits = (isinstance(v, int) and INT64.min <= v <= INT64.max for v in values)
        return np.array([v if good else absent for v, good in zip(values, fits, strict=True)], dtype=np.int64)


def spans(start: np.ndarray, end: np.ndarray) -> dict[str, np.ndarray]:
    """The four time columns of records with a begin and an end; 0 for either, or an end before the begin: no time."""
    timed = (start > 0) & (end > 0) & (end >= start)
    return {
        "start_ns": np.where(timed, start, 0),
        "end_ns": np.where(timed, end, 0),
        "dur_ns": np.where(timed, end - start, 0),
        "timed": timed,
    }


def backwards(part: FileTrace, start: np.ndarray, end: np.ndarray) -> None:
    """Warn of records that end before they begin; `spans` leaves them without a time."""
    count = int(np.count_nonzero((start > 0) & (end > 0) & (end < start)))
    if count:
        part.warn(
            "negative_duration",
            f"{count} kernels end before they begin; they count as kernels without a time",
        )


def launches(kernels: Kernels, calls: Calls) -> None:
    """Fill launch_ns and thread from the API call with the same correlation id in the same process.

    Under graph replay many kernels share the one launching call: they all get its time.
    """
    if not len(calls) or "correlation" not in kernels.columns:
        return
    mine, theirs = shared_codes(kernels["process"], calls["process"])
    launch, thread = np.array(kernels["launch_ns"]), np.array(kernels["thread"])
    for process in np.unique(theirs):
        rows, others = (np.flatnonzero(codes == process) for codes in (mine, theirs))
        order = others[np.argsort(calls["correlation"][others], kind="stable")]
        keys, wanted = calls["correlation"][order], np.asarray(kernels["correlation"])[rows]
        place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        found = (keys[place] == wanted) & (wanted != 0)
        launch[rows[found]] = calls["start_ns"][order[place[found]]]
        thread[rows[found]] = calls["thread"][order[place[found]]]
    kernels["launch_ns"], kernels["thread"] = launch, thread


def shared_codes(one: Coded, other: Coded) -> tuple[np.ndarray, np.ndarray]:
    """Two text columns as codes of one dictionary."""
    index = {text: code for code, text in enumerate(one.values)}
    places = np.array([index.setdefault(text, len(index)) for text in other.values] + [-1])
    return np.asarray(one.codes), places[other.codes]


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


def align(files: list[FileTrace]) -> None:
    """Put files whose times count from different moments, as far as they say so, on one clock."""
    bases = [file.base_ns for file in files if file.base_ns is not None]
    for file in files:
        if file.base_ns is not None and file.base_ns != min(bases):
            file.shift(file.base_ns - min(bases))


def distinct(files: list[FileTrace]) -> tuple[list[FileTrace], list[tuple[FileTrace, FileTrace]]]:
    """(files to count, [(file left out, the file that holds its kernels)])."""
    kept: list[FileTrace] = []
    dropped = []
    for file in sorted(files, key=_order):
        same = next((other for other in kept if _same_run(file, other)), None)
        if same is None:
            kept.append(file)
        else:
            dropped.append((file, same))
            _adopt(same, file)
    return [file for file in files if file in kept], dropped


def _order(file: FileTrace) -> tuple:
    place = _PREFERENCE.index(file.format) if file.format in _PREFERENCE else len(_PREFERENCE)
    return _averaged(file), -len(file.kernels), place


def _same_run(file: FileTrace, other: FileTrace) -> bool:
    """Does `other`, which holds at least as many kernels, hold those of `file`?"""
    if not len(file.kernels) or not len(other.kernels):
        return False
    merged = len(np.unique(group_codes(other.kernels, ("host", "process", "agent")))) > 1
    if file.rank != other.rank and file.rank >= 0 and other.rank >= 0 and not merged:
        return False
    if _averaged(file) and not _averaged(other):
        return other.format.split()[0] == file.format.split()[0]
    if file.format != other.format:
        return not _other_process(file, other) and _share(file.kernels, other.kernels) >= _SAME
    hosts, others = (set(f.kernels["host"].values) for f in (file, other))
    if hosts and others:
        return bool(hosts & others) and _share(file.kernels, other.kernels) >= _SAME
    if file.path.name.removesuffix(".gz") == other.path.name.removesuffix(".gz"):
        return not _other_process(file, other) and _share(file.kernels, other.kernels) >= _SAME
    # A merge holds every kernel of its shards, on their agents.
    return (
        merged and len(other.kernels) > len(file.kernels) and _share(file.kernels, other.kernels, True) == 1
    )


def _averaged(file: FileTrace) -> bool:
    return bool(np.any(file.kernels["averaged"]))


def _other_process(file: FileTrace, other: FileTrace) -> bool:
    """Do both know process ids, and none in common? An export numbers its processes anew."""
    if "exported table" in (file.format, other.format):
        return False
    one, two = (set(f.kernels["process"].values) or {process_of(f.path)[1]} for f in (file, other))
    return all(name.isdigit() for name in one | two) and not one & two


def _share(kernels: Kernels, other: Kernels, same_agent: bool = False) -> float:
    """The share of the kernels that `other` has at the same nanosecond, for as long (and on the agent of that name)."""
    agents, others = shared_codes(kernels["agent"], other["agent"]) if same_agent else (0, 0)
    pairs = ((kernels, agents), (other, others))
    one, two = (
        (k["start_ns"] * 1_000_003 + k["dur_ns"] + 7_919 * np.asarray(agent, np.int64))[k["timed"]]
        for k, agent in pairs
    )
    return float(np.isin(one, two).mean()) if len(one) else 0.0


def _adopt(kept: FileTrace, dropped: FileTrace) -> None:
    """Ranges that only the left-out file has stay, under the kept file's process where it has but one."""
    kernels = kept.kernels
    if len(kept.ranges) or len(np.unique(group_codes(kernels, ("host", "process")))) != 1:
        return
    kept.ranges = dropped.ranges
    for name in ("host", "process"):
        text = kernels[name].values[kernels[name].codes[0]] if kernels[name].codes[0] >= 0 else None
        kept.ranges[name] = constant(text, len(kept.ranges))


def joined(parts: list[FileTrace]) -> tuple[Kernels, Ranges]:
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
