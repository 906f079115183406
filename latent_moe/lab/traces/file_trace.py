"""What one reader makes of one file, before the files of a recording are put together."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from latent_moe.errors import InputError
from latent_moe.lab.traces.table import Coded, Columns, Kernels, Ranges, Warning

INT64 = np.iinfo(np.int64)


class Calls(Columns):
    """API calls on the host (hip*, cuda*), by which launches find their time and thread."""

    fields = ("process", "thread", "start_ns", "correlation")


@dataclass(eq=False)
class Part:
    """One file's kernels, ranges and API calls; a marker or API file has no kernels."""

    path: Path
    format: str
    kernels: Kernels
    ranges: Ranges = field(default_factory=lambda: Ranges(0))
    calls: Calls = field(default_factory=lambda: Calls(0))
    warnings: list[Warning] = field(default_factory=list)
    partial: bool = False
    rank: int = -1

    def warn(self, code: str, message: str) -> None:
        """Add one warning, which names the file."""
        self.warnings.append(Warning(code, f"{self.path.name}: {message}"))


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


def backwards(part: Part, start: np.ndarray, end: np.ndarray) -> None:
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
