"""The kernel table: one row per device kernel, the same columns whatever the trace format.

Columns are numpy arrays, text is dictionary-encoded (`Coded`), and the pandas DataFrame is built when somebody asks
for it: importing pandas costs more than reading a 37 MB trace. Times and durations are nanoseconds (int64).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

TEXT_COLUMNS = (
    "process",
    "agent",
    "queue",
    "stream",
    "name",
    "kind",
    "library",
    "region",
    "grid",
    "workgroup",
    "source",
)
TIME_COLUMNS = ("start_ns", "end_ns", "dur_ns")
NUMBER_COLUMNS = ("rank", "M", "N", "K")
PUBLIC_COLUMNS = (
    *("process", "rank", "agent", "queue", "stream", "name", "kind", "library", *TIME_COLUMNS),
    *("region", "M", "N", "K", "grid", "workgroup", "source"),
)
# What an absent cell holds. Times have a mask of their own (`timed`), because 0 is a possible time.
MISSING = {
    **dict.fromkeys(NUMBER_COLUMNS, -1),
    **dict.fromkeys(TIME_COLUMNS, 0),
    **{
        "correlation": 0,
        "parent": 0,
        "thread": -1,
        "launch_ns": -1,
        "message_bytes": -1,
        "timed": False,
        "flagged": False,
        "averaged": False,
    },
}
KERNEL_COLUMNS = (
    *PUBLIC_COLUMNS,
    "timed",
    "flagged",
    "averaged",
    "correlation",
    "parent",
    "thread",
    "launch_ns",
    "op",
    "dims",
    "host",
    "group",
    "message_bytes",
)
RANGE_COLUMNS = (
    "host",
    "process",
    "thread",
    "name",
    "start_ns",
    "end_ns",
    "correlation",
    "domain",
    "agent",
    "stream",
    "source",
)


@dataclass(frozen=True)
class TraceNote:
    """Something the reader of a figure has to know: a code for programs, a message for people."""

    code: str
    message: str


@dataclass(frozen=True, eq=False)
class Coded:
    """A text column: `values[codes[i]]` is row i's text, code -1 an absent one."""

    codes: np.ndarray
    values: list[str]

    def __len__(self) -> int:
        return len(self.codes)

    def objects(self) -> np.ndarray:
        """The column spelled out: an object array with None where the text is absent."""
        return np.array([*self.values, None], dtype=object)[self.codes]

    def take(self, rows: np.ndarray) -> "Coded":
        """The given rows (an index array or a mask), with the same dictionary."""
        return Coded(self.codes[rows], self.values)

    def map(self, change: Callable | Sequence[str | None]) -> "Coded":
        """Another text for each dictionary entry (a function of it, or all in order), equal texts sharing a code."""
        fresh = encode([change(value) for value in self.values] if callable(change) else change)
        codes = np.append(fresh.codes, fresh.codes.dtype.type(-1))
        return Coded(codes[self.codes], fresh.values)


def narrow(codes: np.ndarray, size: int) -> np.ndarray:
    """Codes of a dictionary of `size` texts in the smallest signed integers that hold them and -1."""
    kind = np.int8 if size < 1 << 7 else np.int16 if size < 1 << 15 else np.int32
    return codes.astype(kind, copy=False)


def encode(texts: Iterable) -> Coded:
    """Dictionary-encode texts (or other things to be mapped to text), in order of first appearance."""
    texts = texts if isinstance(texts, list | tuple) else list(texts)
    values = list(dict.fromkeys(texts))
    if None in values:
        values.remove(None)
    index: dict = {text: code for code, text in enumerate(values)}
    index[None] = -1
    codes = np.fromiter(map(index.__getitem__, texts), dtype=np.int32, count=len(texts))
    return Coded(narrow(codes, len(values)), values)


def constant(text: str | None, n: int) -> Coded:
    """A column that holds one text n times, in the memory of one code."""
    code = np.int8(-1 if text is None else 0)
    return Coded(np.broadcast_to(code, n), [] if text is None else [text])


def from_keys(keys: np.ndarray, texts: dict[int, str], otherwise: str | None = None) -> Coded:
    """Encode a column of integer keys through a dictionary; `otherwise` may hold one `{}` for an unknown key."""
    unique, inverse = np.unique(keys, return_inverse=True)
    names = [texts.get(int(k), otherwise.format(int(k)) if otherwise else None) for k in unique]
    coded = encode(names)
    return Coded(coded.codes[inverse.reshape(-1)], coded.values)


def number_texts(keys: np.ndarray, absent: int = -1) -> Coded:
    """Integers as text ("19"); `absent` stands for a missing one."""
    unique, inverse = np.unique(keys, return_inverse=True)
    coded = encode(None if k == absent else str(int(k)) for k in unique)
    return Coded(coded.codes[inverse.reshape(-1)], coded.values)


def sizes(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> Coded:
    """Grid or workgroup sizes as "64x1x1"."""
    codes, values = _codes(x), [str(v) for v in np.unique(x)]
    for part in (y, z):
        texts = [str(v) for v in np.unique(part)]
        pairs, codes = np.unique(codes.astype(np.int64) * len(texts) + _codes(part), return_inverse=True)
        values = [f"{values[p // len(texts)]}x{texts[p % len(texts)]}" for p in pairs.tolist()]
    return Coded(narrow(codes, len(values)), values)


def _codes(values: np.ndarray) -> np.ndarray:
    return np.unique(values, return_inverse=True)[1].reshape(-1)


class Columns:
    """Named columns of one length: int64 or bool arrays and `Coded` texts; absent ones read as missing."""

    fields: tuple[str, ...] = ()

    def __init__(self, n: int, columns: dict | None = None):
        self.n = n
        self.columns = dict(columns or {})
        unknown = [name for name in self.columns if name not in self.fields]
        wrong = [name for name, column in self.columns.items() if len(column) != n]
        if unknown or wrong:
            raise ValueError(f"unknown columns {unknown}, columns of another length than {n}: {wrong}")

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, name: str):
        if name in self.columns:
            return self.columns[name]
        if name not in self.fields:
            raise KeyError(name)
        return np.broadcast_to(MISSING[name], self.n) if name in MISSING else constant(None, self.n)

    def __setitem__(self, name: str, column) -> None:
        if name not in self.fields or len(column) != self.n:
            raise ValueError(f"column {name} does not fit a table of {self.n} rows")
        self.columns[name] = column

    def take(self, rows: np.ndarray):
        """The given rows (an index array or a mask) as a table of the same kind."""
        columns = {k: v.take(rows) if isinstance(v, Coded) else v[rows] for k, v in self.columns.items()}
        n = int(np.count_nonzero(rows)) if rows.dtype == bool else len(rows)
        return type(self)(n, columns)

    @classmethod
    def concatenate(cls, parts: Sequence["Columns"]):
        """All rows of all parts; dictionaries are merged. The parts are used up: they give each column away as it is
        joined, so that long tables are not held twice."""
        if len(parts) == 1:
            return parts[0]
        names = [name for name in cls.fields if any(name in part.columns for part in parts)]
        return cls(
            sum(map(len, parts)), {name: _joined([part._give(name) for part in parts]) for name in names}
        )

    def _give(self, name: str):
        column = self[name]
        self.columns.pop(name, None)
        return column


def _joined(columns: list):
    if not isinstance(columns[0], Coded):
        return np.concatenate(columns)
    merged = encode(value for column in columns for value in column.values)
    codes, first = np.empty(sum(map(len, columns)), dtype=merged.codes.dtype), 0
    place = 0
    for column in columns:
        places = np.append(merged.codes[first : first + len(column.values)], merged.codes.dtype.type(-1))
        codes[place : place + len(column)] = places[column.codes]
        first, place = first + len(column.values), place + len(column)
    return Coded(codes, merged.values)


class Kernels(Columns):
    """One row per device kernel; see the module's `KERNEL_COLUMNS`."""

    fields = KERNEL_COLUMNS


class Ranges(Columns):
    """One row per named range (ROCTX, NVTX, record_function); `domain` is "host" or "device"."""

    fields = RANGE_COLUMNS


def group_codes(kernels: Kernels, columns: tuple[str, ...]) -> np.ndarray:
    """One number per combination of text columns; the number is the same wherever all of them are."""
    codes = np.zeros(len(kernels), dtype=np.int64)
    for name in columns:
        column = kernels[name]
        codes *= len(column.values) + 1
        codes += column.codes
        codes += 1
    return codes


def kernels_from(n: int, **columns) -> Kernels:
    """A kernel table of n rows from some columns. Lists of text are encoded, lists of numbers become int64;
    with start_ns and end_ns given, dur_ns and timed follow unless given too."""
    ready = {name: _column(column) for name, column in columns.items()}
    if "start_ns" in ready and "end_ns" in ready:
        ready.setdefault("dur_ns", ready["end_ns"] - ready["start_ns"])
        ready.setdefault("timed", np.ones(n, dtype=bool))
    return Kernels(n, ready)


def ranges_from(n: int, **columns) -> Ranges:
    """A table of n ranges from some columns, as `kernels_from`."""
    return Ranges(n, {name: _column(column) for name, column in columns.items()})


def _column(column):
    if isinstance(column, Coded | np.ndarray):
        return column
    column = list(column)
    return (
        encode(column) if any(isinstance(item, str) for item in column) else np.array(column, dtype=np.int64)
    )


@dataclass(eq=False)
class Trace:
    """What was read: the kernels, the ranges around them, and what a reader of the figures has to know."""

    kernels: Kernels
    ranges: Ranges
    warnings: list[TraceNote] = field(default_factory=list)
    partial: bool = False
    files: list[str] = field(default_factory=list)
    formats: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    device: str | None = None

    @property
    def processes(self) -> list[str]:
        """The processes whose kernels are in the table."""
        column = self.kernels["process"]
        return [column.values[code] for code in np.unique(column.codes) if code >= 0]

    @property
    def table(self):
        """The kernel table as a pandas DataFrame (`PUBLIC_COLUMNS`; absent cells are missing, not 0)."""
        if not hasattr(self, "_table"):
            self._table = to_frame(self.kernels)
        return self._table

    def warn(self, code: str, message: str) -> None:
        """Add one warning."""
        self.warnings.append(TraceNote(code, message))


def to_frame(kernels: Kernels):
    """[n, 18] pandas DataFrame with the public columns: text as categories, times and numbers as nullable Int64."""
    import pandas as pd

    untimed = ~np.asarray(kernels["timed"])
    absent_times = dict.fromkeys(("start_ns", "end_ns"), untimed | kernels["averaged"]) | {"dur_ns": untimed}
    columns: dict = {}
    for name in PUBLIC_COLUMNS:
        column = kernels[name]
        if isinstance(column, Coded):
            columns[name] = pd.Categorical.from_codes(
                column.codes, categories=pd.Index(column.values, dtype=object)
            )
        else:
            absent = absent_times[name] if name in TIME_COLUMNS else column < 0
            columns[name] = pd.arrays.IntegerArray(np.array(column, dtype=np.int64), np.array(absent))
    return pd.DataFrame(columns, columns=list(PUBLIC_COLUMNS))
