"""Reader for rocprofv3's CSV files, read by header name: 16 to 26 columns of kernel_trace, marker and API traces.

Layouts: 16 columns in ROCm 6.2.0, 18 from 6.2.4, 22 in 7.0, 23 to 26 from `rocpd convert`. One file holds one process
unless it has a Guid or Process_Id column; else the process is what the file's name starts with.
"""

import csv
import io
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np

from latent_moe.errors import InputError
from latent_moe.lab.traces.file_trace import Calls, FileTrace, backwards, spans, times
from latent_moe.lab.traces.readers.raw_files import blocks, head
from latent_moe.lab.traces.table import Coded, Kernels, Ranges, constant, encode

_ROWS = 20_000
_ROUNDED = re.compile(r"[+-]?\d+(?:[.,]\d+)?[eE]\+?\d+$")
csv.field_size_limit(1 << 24)


class CsvTable:
    """One CSV file: `header` (lower case), and `chunks()` of its rows as {column: list of cells}.

    Cells behind an unquoted comma in `wide` (a kernel's name) are put together again. Raises InputError: a row with
    too few cells, unless `salvage`, which leaves it out and sets `cut`.
    """

    def __init__(self, path: Path, wide: str = "kernel_name", salvage: bool = False):
        self.path, self.wide, self.salvage = path, wide, salvage
        self.cut, self.row = False, 1
        start = head(path)
        self.encoding = "utf-16" if start[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
        self.delimiter, self.header = header_of(start.decode(self.encoding, "replace"))

    def chunks(self) -> Iterator[dict[str, tuple[str, ...]]]:
        rows = self._rows()
        next(rows, None)
        while chunk := list(islice(rows, _ROWS)):
            good = self._whole(chunk)
            yield dict(zip(self.header, zip(*good, strict=True), strict=True)) if good else {}
            self.row += len(chunk)

    def _rows(self) -> Iterator[list[str]]:
        raw = io.BufferedReader(_Raw(blocks(self.path, 1 << 20, self.salvage)), 1 << 20)
        text = io.TextIOWrapper(raw, self.encoding, errors="replace", newline="")
        try:
            yield from (row for row in csv.reader(text, delimiter=self.delimiter) if row)
        except csv.Error as error:
            raise InputError(f"{self.path}: damaged CSV near row {self.row} ({error})") from None

    def _whole(self, chunk: list[list[str]]) -> list[list[str]]:
        width = len(self.header)
        if all(len(row) == width for row in chunk):
            return chunk
        mended = [self._mended(row, self.row + place) for place, row in enumerate(chunk, 1)]
        return [row for row in mended if row]

    def _mended(self, row: list[str], number: int) -> list[str] | None:
        extra = len(row) - len(self.header)
        if extra == 0:
            return row
        if extra < 0:
            if not self.salvage:
                cells = f"{len(row)} of {len(self.header)} cells"
                raise InputError(f"{self.path}: truncated or damaged CSV, row {number} has {cells}")
            self.cut = True
            return None
        if not any(row[-extra:]):
            return row[:-extra]
        place = self.header.index(self.wide) if self.wide in self.header else 0
        return [*row[:place], self.delimiter.join(row[place : place + extra + 1]), *row[place + extra + 1 :]]

    def numbers(self, cells: tuple[str, ...], column: str, absent: int) -> np.ndarray:
        """Cells as int64, empty ones as `absent`. Raises InputError that names column, row and cell."""
        try:
            return np.array(list(map(int, cells)), dtype=np.int64)
        except (ValueError, OverflowError):
            return np.array(
                [self._number(c, column, absent, n) for n, c in enumerate(cells, 1)], dtype=np.int64
            )

    def _number(self, cell: str, column: str, absent: int, place: int) -> int:
        cell = cell.strip()
        if not cell:
            return absent
        where = f"{self.path}: column {self.title(column)}, row {self.row + place}"
        if _ROUNDED.match(cell):
            raise InputError(
                f"{where}: {cell} was rounded by a spreadsheet, the precision is gone; use the original file"
            )
        try:
            value = int(cell)
        except ValueError:
            raise InputError(f"{where}: {cell[:40]!r} is no whole number") from None
        if not -(1 << 62) < value < 1 << 62:
            raise InputError(f"{where}: {cell[:40]} is no time or identifier of 64 bits")
        return value

    def title(self, column: str) -> str:
        """The column's name as rocprofv3 spells it."""
        return "_".join(word.capitalize() for word in column.split("_"))


class _Raw(io.RawIOBase):
    """Blocks of bytes as a raw file."""

    def __init__(self, source: Iterator[bytes]):
        self.source, self.rest = source, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        self.rest = self.rest or memoryview(next(self.source, b""))
        size = min(len(buffer), len(self.rest))
        buffer[:size], self.rest = self.rest[:size], self.rest[size:]
        return size


def header_of(text: str) -> tuple[str, list[str]]:
    """(delimiter, lower-case column names) of the first line that is not empty."""
    line = next((line for line in text.splitlines() if line.strip()), "")
    delimiter = max(",;\t", key=line.count)
    cells = next(csv.reader([line], delimiter=delimiter), [])
    return delimiter, [cell.strip().lower() for cell in cells]


ROCPROFV2, PC_SAMPLES = "rocprofv2 CSV", "rocprofv3 PC sampling trace"
FORMAT, MARKERS, API = "rocprofv3 CSV", "rocprofv3 marker trace", "rocprofv3 API trace"


def kind_of(header: list[str]) -> str | None:
    """What a CSV with these (lower-case) columns is; None: nothing that a profiler writes."""
    columns = set(header)
    if "counter_name" in columns:
        return "rocprofv3 counter collection"
    if {"kernel_name", "start_timestamp", "end_timestamp"} <= columns:
        return ROCPROFV2 if {"gpu_id", "pid"} <= columns else FORMAT
    if {"sample_timestamp", "exec_mask"} <= columns:
        return f"{PC_SAMPLES}; --kernel-trace writes what is read here"
    if {"start (ns)", "duration (ns)"} <= columns or {"total time (ns)", "instances"} <= columns:
        return "Nsight Systems CSV; PyTorch's profiler writes JSON that is read here"
    if {"function", "domain", "start_timestamp"} <= columns:
        return API
    if {"direction", "start_timestamp"} <= columns:
        return "rocprofv3 memory copy trace"
    if {"start_timestamp", "operation"} <= columns or {"start_timestamp", "alloc_flags"} <= columns:
        return "rocprofv3 memory allocation trace"
    if {"node_id", "logical_node_id"} <= columns:
        return "rocprofv3 agent list"
    if {"name", "calls", "totaldurationns"} <= columns:
        return "rocprofv3 statistics" if "minns" in columns else "rocprof v1 statistics"
    return "rocprof v1 CSV" if {"kernelname", "beginns", "endns"} <= columns else None


def read(path: Path, salvage: bool = False) -> FileTrace:
    """Read one kernel, marker or API trace. Raises InputError: a cell that is no number, a row that is cut."""
    table = CsvTable(path, salvage=salvage)
    if kind_of(table.header) == API:
        return _calls_and_ranges(path, table)
    part = FileTrace(path, kind_of(table.header) or FORMAT, Kernels(0))
    found = [_kernels(part, table, cells) for cells in table.chunks() if cells]
    if found:
        part.kernels = Kernels.concatenate(found)
        replaced = sum("\ufffd" in name for name in part.kernels["name"].values)
        if replaced:
            part.warn("damaged_text", f"{replaced} kernel names hold bytes that are not UTF-8")
    return _ended(part, table)


def _ended(part: FileTrace, table: CsvTable) -> FileTrace:
    if table.cut:
        part.partial = True
        part.warn("partial", "rows with too few cells were left out")
    return part


def _kernels(part: FileTrace, table: CsvTable, cells: dict) -> Kernels:
    start = times(table.numbers(cells["start_timestamp"], "start_timestamp", 0), part.path, "Start_Timestamp")
    end = times(table.numbers(cells["end_timestamp"], "end_timestamp", 0), part.path, "End_Timestamp")
    backwards(part, start, end)
    n = len(start)
    columns: dict[str, Coded | np.ndarray] = {
        "host": _text_column(cells, "guid", n),
        "process": _text_column(cells, "pid" if part.format == ROCPROFV2 else "process_id", n),
        "agent": _agents(cells, n),
        "name": encode(cells["kernel_name"]),
        "grid": _sizes(cells, "grid_size", n),
        "workgroup": _sizes(cells, "workgroup_size", n),
    }
    for name in ("queue", "stream"):
        columns[name] = _blank(encode(cells[f"{name}_id"])) if f"{name}_id" in cells else constant(None, n)
    for name, absent in (("correlation", 0), ("thread", -1)):
        if f"{name}_id" in cells:
            columns[name] = _numbers_or(cells[f"{name}_id"], absent)
    return Kernels(n, columns | _own_duration(table, cells, spans(start, end)))


def _own_duration(table: CsvTable, cells: dict, found: dict) -> dict:
    """The trace's own Duration where it has the column."""
    if "duration" not in cells:
        return found
    own = table.numbers(cells["duration"], "duration", -1)
    return found | {"dur_ns": np.where(found["timed"] & (own >= 0), own, found["dur_ns"])}


def _numbers_or(cells, absent: int) -> np.ndarray:
    try:
        return np.array(list(map(int, cells)), dtype=np.int64)
    except (ValueError, OverflowError):
        return np.array([int(c) if re.fullmatch(r"\d{1,18}", c) else absent for c in cells], dtype=np.int64)


def _text_column(cells: dict, name: str, n: int) -> Coded:
    return _blank(encode(cells[name])) if name in cells else constant(None, n)


def _blank(column: Coded) -> Coded:
    return column.map([value.strip() or None for value in column.values])


def _agents(cells: dict, n: int) -> Coded:
    form, name = ("GPU {}", "gpu_id") if "gpu_id" in cells else ("Agent {}", "agent_id")
    column = _text_column(cells, name, n)
    return column.map([form.format(value) if value.isdigit() else value for value in column.values])


def _sizes(cells: dict, name: str, n: int) -> Coded:
    axes = [f"{name}_{axis}" for axis in "xyz"]
    if name in cells:
        return _text_column(cells, name, n)
    if not all(axis in cells for axis in axes):
        return constant(None, n)
    return encode(map("x".join, zip(*(cells[axis] for axis in axes), strict=True)))


def _calls_and_ranges(path: Path, table: CsvTable) -> FileTrace:
    part, ranges, calls = FileTrace(path, API, Kernels(0)), [], []
    for cells in table.chunks():
        if not cells:
            continue
        start = table.numbers(cells["start_timestamp"], "start_timestamp", 0)
        end = table.numbers(cells["end_timestamp"], "end_timestamp", 0) if "end_timestamp" in cells else start
        n = len(start)
        columns = {
            "host": _text_column(cells, "guid", n),
            "process": _text_column(cells, "process_id", n),
            "thread": _numbers_or(cells["thread_id"], -1) if "thread_id" in cells else np.full(n, -1),
            "correlation": _numbers_or(cells["correlation_id"], 0)
            if "correlation_id" in cells
            else np.zeros(n, int),
            "start_ns": start,
        }
        marker = np.array([domain.startswith("MARKER") for domain in cells["domain"]], dtype=bool)
        whole = Ranges(
            n, columns | {"end_ns": end, "name": encode(cells["function"]), "domain": constant("host", n)}
        )
        ranges.append(whole.take(marker & (end > start)))
        calls.append(Calls(n, columns).take(~marker))
        part.format = MARKERS if marker.any() else part.format
    if ranges:
        part.ranges, part.calls = Ranges.concatenate(ranges), Calls.concatenate(calls)
        part.ranges["source"] = constant(str(path), len(part.ranges))
    return _ended(part, table)


def refused(path: Path, kind: str) -> InputError:
    """The error for a file that is what `kind` says and therefore no kernel trace."""
    return InputError(f"{path}: this is a {kind}, not a kernel trace")
