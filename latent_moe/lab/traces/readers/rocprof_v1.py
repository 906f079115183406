"""Readers for legacy rocprof (v1): its CSV with one dispatch a row, its database; statistics of it and of rocprofv3.

Statistics know calls and sums only: their rows are spread over the calls with the mean as duration (`averaged`), so
that sums and counts are right; busy time, medians and start times do not exist there.
"""

import csv
import re
from pathlib import Path

import numpy as np

from latent_moe.errors import InputError
from latent_moe.lab.traces.file_trace import FileTrace, backwards, spans, times
from latent_moe.lab.traces.readers import raw_files
from latent_moe.lab.traces.readers.rocprof_csv import CsvTable
from latent_moe.lab.traces.table import Coded, Kernels, constant, encode

CSV, STATS, DATABASE = "rocprof v1 CSV", "rocprof v1 statistics", "rocprof v1 database"
STATS_V3 = "rocprofv3 statistics"
# Statistics of API calls, copies and whole domains have the columns of kernel statistics; their names tell them apart.
_NO_KERNEL = re.compile(
    r"hip[A-Z]|__hip|hsa_|roctx|nccl(?!Dev|Kernel)|Copy(?:Device|Host)|MEMORY_|KERNEL_DISPATCH$|[A-Z_]+_API$"
)
_MOST_CALLS = 5_000_000


def read_csv(path: Path, salvage: bool = False) -> FileTrace:
    """Read rocprof v1's results.csv. Raises InputError as the rocprofv3 reader does."""
    part, table = FileTrace(path, CSV, Kernels(0)), CsvTable(path, wide="kernelname", salvage=salvage)
    found = [_dispatches(part, table, cells) for cells in table.chunks() if cells]
    part.kernels = Kernels.concatenate(found or [Kernels(0)])
    part.partial = table.cut
    return part


def _dispatches(part: FileTrace, table: CsvTable, cells: dict) -> Kernels:
    start, end = (table.numbers(cells[name], name, 0) for name in ("beginns", "endns"))
    return _kernels(part, times(start, part.path, "BeginNs"), times(end, part.path, "EndNs"), cells)


def _kernels(part: FileTrace, start: np.ndarray, end: np.ndarray, cells: dict) -> Kernels:
    backwards(part, start, end)
    n = len(start)
    columns = {
        "process": encode(cells["pid"]) if "pid" in cells else constant(None, n),
        "name": encode(cells["kernelname"]),
        "agent": _labelled(cells.get("gpu-id"), "GPU {}", n),
        "queue": _labelled(cells.get("queue-id"), "{}", n),
        "grid": _labelled(cells.get("grd"), "{}", n),
        "workgroup": _labelled(cells.get("wgr"), "{}", n),
    }
    return Kernels(n, columns | spans(start, end))


def _labelled(cells, form: str, n: int) -> Coded:
    return (
        constant(None, n) if cells is None else encode(form.format(cell) if cell else None for cell in cells)
    )


def are_of_kernels(text: str) -> bool:
    """Do these first lines of a statistics file name anything but API calls, copies and domains?"""
    rows = list(csv.reader(text.splitlines()[:200]))
    places = [i for i, cell in enumerate(rows[0]) if cell.strip().lower() == "name"] if rows else []
    names = [row[places[0]] for row in rows[1:] if places and len(row) > places[0]]
    return not names or any(not _NO_KERNEL.match(name) for name in names)


def read_stats(path: Path, salvage: bool = False) -> FileTrace:
    """Read rocprof v1's results.stats.csv or rocprofv3's kernel_stats.csv into `averaged` rows."""
    table = CsvTable(path, wide="name", salvage=salvage)
    part = FileTrace(path, STATS_V3 if "minns" in table.header else STATS, Kernels(0))
    found = [_spread(part, table, cells) for cells in table.chunks() if cells]
    part.kernels = Kernels.concatenate(found or [Kernels(0)])
    part.partial = table.cut
    part.warn(
        "averages_only", "statistics hold sums and calls: no busy time, no medians, no order of kernels"
    )
    return part


def _spread(part: FileTrace, table: CsvTable, cells: dict) -> Kernels:
    calls = table.numbers(cells["calls"], "calls", 0)
    total = table.numbers(cells["totaldurationns"], "totaldurationns", 0)
    if len(calls) and (calls.min() < 0 or total.min() < 0 or calls.sum() > _MOST_CALLS):
        raise InputError(f"{part.path}: no statistics of kernels, or too many calls: {int(calls.sum())}")
    rows = np.repeat(np.arange(len(calls)), calls)
    first = np.repeat(np.cumsum(calls) - calls, calls)
    mean, left = np.divmod(total, np.maximum(calls, 1))
    # The first `left` calls of a row get one nanosecond more, so that the sum is the file's own.
    duration = mean[rows] + (np.arange(len(rows)) - first < left[rows])
    name = encode(cells["name"]).take(rows)
    true = np.ones(len(rows), dtype=bool)
    columns = {"name": name, "dur_ns": duration, "timed": true, "averaged": true}
    return Kernels(len(rows), columns)


def kernel_table(connection, names: dict[str, str]) -> str | None:
    """The table of a rocprof v1 database that holds dispatches."""
    for name in names:
        columns = {column.lower() for column in raw_files.columns_of(connection, name)}
        if {"kernelname", "beginns", "endns"} <= columns:
            return name
    return None


def read_database(path: Path, salvage: bool = False) -> FileTrace:  # noqa: ARG001 - one signature for every reader
    """Read rocprof v1's results.db. Raises InputError: damaged, or without a table of dispatches."""
    part = FileTrace(path, DATABASE, Kernels(0))
    with raw_files.opened(path) as connection:
        table = kernel_table(connection, raw_files.tables(connection))
        if table is None:
            raise InputError(f"{path}: a SQLite database without kernels: neither rocpd nor rocprof v1")
        columns = raw_files.columns_of(connection, table)
        rows = connection.execute(f"SELECT * FROM {raw_files.quoted(table)}").fetchall()
    cells = {
        c.lower(): ["" if v is None else str(v) for v in column]
        for c, column in zip(columns, zip(*rows, strict=True), strict=False)
    }
    if rows:
        start, end = (times([v or "0" for v in cells[name]], path, name) for name in ("beginns", "endns"))
        part.kernels = _kernels(part, start, end, cells)
    return part
