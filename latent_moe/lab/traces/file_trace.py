"""One file's kernels, ranges and API calls as its reader hands them over, and the files of a recording put together."""

import re
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from latent_moe.errors import InputError
from latent_moe.lab.traces.table import Coded, Columns, Kernels, Ranges, TraceNote, constant

INT64 = np.iinfo(np.int64)


class Calls(Columns):
    """API calls on the host (hip*, cuda*), by which launches find their time and thread."""

    fields = ("process", "thread", "start_ns", "correlation")


@dataclass(eq=False)
class FileTrace:
    """One file's kernels, ranges and API calls; a marker or API file has no kernels."""

    path: Path
    format: str
    kernels: Kernels
    ranges: Ranges = field(default_factory=lambda: Ranges(0))
    calls: Calls = field(default_factory=lambda: Calls(0))
    warnings: list[TraceNote] = field(default_factory=list)
    partial: bool = False
    rank: int = -1

    def warn(self, code: str, message: str) -> None:
        """Add one warning, which names the file."""
        self.warnings.append(TraceNote(code, f"{self.path.name}: {message}"))


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


def rank_of(part: FileTrace) -> int:
    """The rank a file says it is of, else the one its path names, else -1."""
    if part.rank >= 0:
        return part.rank
    for name in (part.path.name, *(folder.name for folder in part.path.parents)):
        if match := _RANK.search(name):
            return int(match[1])
    return -1


def name_ranks(parts: list[FileTrace]) -> None:
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


def distinct(parts: list[FileTrace]) -> tuple[list[FileTrace], list[tuple[FileTrace, FileTrace]]]:
    """(parts to count, [(part left out, the part that holds its kernels)])."""
    kept: list[FileTrace] = []
    dropped = []
    for part in sorted(parts, key=_order):
        same = next((other for other in kept if _same_run(part, other)), None)
        if same is None:
            kept.append(part)
        else:
            dropped.append((part, same))
            _adopt(same, part)
    return [part for part in parts if part in kept], dropped


def _order(part: FileTrace) -> tuple:
    averaged = bool(np.any(part.kernels["averaged"]))
    place = _PREFERENCE.index(part.format) if part.format in _PREFERENCE else len(_PREFERENCE)
    return averaged, -len(part.kernels), place


def _same_run(part: FileTrace, other: FileTrace) -> bool:
    if not len(part.kernels) or not len(other.kernels):
        return False
    if part.rank != other.rank and part.rank >= 0 and other.rank >= 0:
        return False
    if part.format == other.format and _stem(part) != _stem(other):
        return False
    if _averaged(part) and not _averaged(other):
        return "rocprof v1" in other.format
    return not _other_process(part, other) and _share(part.kernels, other.kernels) >= _SAME


def _averaged(part: FileTrace) -> bool:
    return bool(np.any(part.kernels["averaged"]))


def _stem(part: FileTrace) -> str:
    return part.path.name.removesuffix(".gz")


def _other_process(part: FileTrace, other: FileTrace) -> bool:
    """Do both know process ids, and none in common? An export numbers its processes anew."""
    if "exported table" in (part.format, other.format):
        return False
    one, two = (set(p.kernels["process"].values) for p in (part, other))
    known = all(name.isdigit() for name in one | two)
    return known and not one & two


def _share(kernels: Kernels, other: Kernels) -> float:
    mine, theirs = (k["start_ns"][k["timed"]] * 1_000_003 + k["dur_ns"][k["timed"]] for k in (kernels, other))
    return float(np.isin(mine, theirs).mean()) if len(mine) else 0.0


def _adopt(kept: FileTrace, dropped: FileTrace) -> None:
    """Ranges that only the left-out file has stay, under the kept file's process where each knows one."""
    names = kept.kernels["process"].values
    if len(kept.ranges) or not len(dropped.ranges) or len(names) != 1:
        return
    kept.ranges = dropped.ranges
    kept.ranges["process"] = constant(names[0], len(dropped.ranges))


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
