"""Reader for rocpd, rocprofv3's SQLite output (schema 3 and 3.0.x), merged files included.

Tables carry a suffix of their recording's uuid; a merged file has several such sets, and ids are unique only together
with `guid`. Kernels come from the dispatch table itself: the convenient view `kernels` joins inwards and loses rows
whose thread, event or text is missing, so the two are compared. Source of the schema: rocprofiler-sdk, share/rocpd.
"""

import sqlite3
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from latent_moe.errors import InputError
from latent_moe.lab.traces.file_trace import Part, backwards, launches, spans, times
from latent_moe.lab.traces.readers import rocpd_ranges, sqlite
from latent_moe.lab.traces.table import Coded, Kernels, Ranges, from_keys, number_texts, sizes

FORMAT = "rocpd"
_DISPATCH = "rocpd_kernel_dispatch"
_NUMBERS = (
    *("pid", "tid", "agent_id", "kernel_id", "queue_id", "stream_id", "start", "end", "region_name_id"),
    *(
        "workgroup_size_x",
        "workgroup_size_y",
        "workgroup_size_z",
        "grid_size_x",
        "grid_size_y",
        "grid_size_z",
    ),
)
# Columns that hold one value in most recordings: found by one pass, and not fetched then.
_OFTEN_ONE = (
    *("pid", "agent_id", "region_name_id", "workgroup_size_y", "workgroup_size_z"),
    *("grid_size_y", "grid_size_z"),
)


@dataclass(frozen=True)
class Recorded:
    """One recording inside the file: a set of tables with one suffix, and one guid of it (None: the only one)."""

    connection: sqlite3.Connection
    path: Path
    suffix: str
    guid: str | None
    names: dict[str, str]

    def table(self, name: str) -> str | None:
        """The set's own table, where the file has it."""
        full = name + self.suffix
        return full if full in self.names else None

    def where(self, prefix: str = "") -> tuple[str, tuple]:
        """The condition that picks this guid's rows."""
        return (f"WHERE {prefix}guid = ?", (self.guid,)) if self.guid is not None else ("", ())

    def texts(self, name: str, *columns: str) -> dict[int, str]:
        """id -> the first of the columns that the table has and that holds something."""
        table = self.table(name)
        known = sqlite.columns_of(self.connection, table) if table else []
        wanted = [sqlite.quoted(c) for c in columns if c in known]
        if not table or not wanted:
            return {}
        condition, parameters = self.where() if "guid" in known else ("", ())
        value = wanted[0] if len(wanted) == 1 else f"coalesce({', '.join(wanted)})"
        rows = self.connection.execute(
            f"SELECT id, {value} FROM {sqlite.quoted(table)} {condition}", parameters
        )
        return {key: str(text) for key, text in rows if isinstance(key, int) and text is not None}


def read(path: Path, salvage: bool = False) -> Part:
    """Read one file. Raises InputError: damaged, or no rocpd database."""
    with sqlite.opened(path) as connection:
        part = Part(path, FORMAT, Kernels(0))
        found = [_one(part, recorded) for recorded in _recorded(connection, path)]
        part.kernels = Kernels.concatenate([kernels for kernels, _ in found] or [Kernels(0)])
        part.ranges = Ranges.concatenate([ranges for _, ranges in found] or [Ranges(0)])
        _check_view(part, connection)
    return part


def is_rocpd(names: dict[str, str]) -> bool:
    """Do these tables belong to a rocpd database?"""
    return any(name == _DISPATCH or name.startswith(_DISPATCH + "_") for name in names)


def _recorded(connection: sqlite3.Connection, path: Path) -> list[Recorded]:
    names = {name: kind for name, kind in sqlite.tables(connection).items() if kind == "table"}
    found = []
    for suffix in sorted(
        n.removeprefix(_DISPATCH) for n in names if n == _DISPATCH or n.startswith(_DISPATCH + "_")
    ):
        guids: list = [(None,)]
        if "guid" in sqlite.columns_of(connection, _DISPATCH + suffix):
            guids = connection.execute(
                f"SELECT DISTINCT guid FROM {sqlite.quoted(_DISPATCH + suffix)}"
            ).fetchall()
        several = len(guids) > 1
        found += [Recorded(connection, path, suffix, guid if several else None, names) for (guid,) in guids]
    return found


def _one(part: Part, recorded: Recorded) -> tuple[Kernels, Ranges]:
    marked = rocpd_ranges.has_regions(recorded)
    cells = _dispatches(recorded, marked)
    processes = recorded.texts("rocpd_info_process", "pid")
    kernels = _kernels(part, recorded, cells, processes)
    if not marked:
        return kernels, Ranges(0)
    threads = rocpd_ranges.threads(recorded)
    kernels["thread"] = rocpd_ranges.thread_ids(cells["tid"], threads)
    kernels["correlation"], kernels["parent"] = cells["stack_id"], cells["parent_stack_id"]
    ranges, calls = rocpd_ranges.read(recorded, processes, threads)
    launches(kernels, calls)
    return kernels, ranges


def _dispatches(recorded: Recorded, marked: bool) -> dict[str, np.ndarray]:
    """name -> int64 column of the dispatch table, in order of id; absent cells and columns are -1, times 0."""
    table = _DISPATCH + recorded.suffix
    known = sqlite.columns_of(recorded.connection, table)
    wanted = [name for name in _NUMBERS if name in known]
    if not {"start", "end", "kernel_id"} <= set(wanted):
        raise InputError(
            f"{recorded.path}: {table} has no start, end and kernel_id: not rocpd as this project knows it"
        )
    n, same = _constants(recorded, table, [name for name in _OFTEN_ONE if name in wanted])
    wanted = [name for name in wanted if name not in same]
    picked = [f"ifnull(D.{sqlite.quoted(name)}, {0 if name in ('start', 'end') else -1})" for name in wanted]
    join, stacks = _event_join(recorded, known) if marked else ("", [])
    picked += [f"ifnull(E.{name}, 0)" for name in stacks]
    condition, parameters = recorded.where("D.")
    statement = f"SELECT {', '.join(picked)} FROM {sqlite.quoted(table)} D {join} {condition}"
    width = len(wanted) + len(stacks)
    strict = [wanted.index("start"), wanted.index("end")]
    values = sqlite.integers(recorded.connection, statement, width, n, recorded.path, parameters, strict)
    absent = dict.fromkeys(_NUMBERS, -1) | {"stack_id": 0, "parent_stack_id": 0} | same
    columns = {name: np.broadcast_to(np.int64(value), n) for name, value in absent.items()}
    return columns | dict(zip([*wanted, *stacks], values, strict=True))


def _constants(recorded: Recorded, table: str, names: list[str]) -> tuple[int, dict[str, int]]:
    """(number of rows, {column: its value} for the columns that hold one value): not to be fetched row by row."""
    condition, parameters = recorded.where()
    source = f"FROM {sqlite.quoted(table)} {condition}"
    n = recorded.connection.execute(f"SELECT count(*) {source}", parameters).fetchone()[0]
    if not n or not names:
        return n, {}
    picked = ", ".join(map(sqlite.quoted, names))
    first = recorded.connection.execute(f"SELECT {picked} {source} LIMIT 1", parameters).fetchone()
    whole = {name: value for name, value in zip(names, first, strict=True) if isinstance(value, int)}
    return n, _unchanging(recorded, f"{source} {'AND' if condition else 'WHERE'}", parameters, whole)


def _unchanging(recorded: Recorded, source: str, parameters: tuple, first: dict[str, int]) -> dict[str, int]:
    """The columns in which no row differs from the first: one pass for all, halves where one of them differs."""
    if not first:
        return {}
    differs = " OR ".join(f"{sqlite.quoted(name)} IS NOT ?" for name in first)
    statement = f"SELECT 1 {source} ({differs}) LIMIT 1"
    if not recorded.connection.execute(statement, (*parameters, *first.values())).fetchall():
        return first
    names, half = list(first), len(first) // 2
    halves = (names[:half], names[half:]) if half else ()
    return {
        name: value
        for some in halves
        for name, value in _unchanging(recorded, source, parameters, {k: first[k] for k in some}).items()
    }


def _event_join(recorded: Recorded, known: list[str]) -> tuple[str, list[str]]:
    """(the join of the dispatches' events, which of the stack columns they have)."""
    events = recorded.table("rocpd_event")
    if not events or "event_id" not in known:
        return "", []
    has = sqlite.columns_of(recorded.connection, events)
    same = " AND E.guid = D.guid" if recorded.guid else ""
    join = f"LEFT JOIN {sqlite.quoted(events)} E ON E.id = D.event_id{same}"
    return join, [name for name in ("stack_id", "parent_stack_id") if name in has]


def _kernels(
    part: Part, recorded: Recorded, cells: dict[str, np.ndarray], processes: dict[int, str]
) -> Kernels:
    start, end = times(cells["start"], part.path, "start"), times(cells["end"], part.path, "end")
    backwards(part, start, end)
    agents = recorded.texts("rocpd_info_agent", "absolute_index")
    strings = recorded.texts("rocpd_string", "string") if (cells["region_name_id"] > 0).any() else {}
    columns = {
        "process": from_keys(cells["pid"], processes, "{}"),
        "agent": from_keys(
            cells["agent_id"], {key: f"Agent {text}" for key, text in agents.items()}, "agent {}"
        ),
        "queue": number_texts(cells["queue_id"]),
        "stream": number_texts(cells["stream_id"]),
        "name": _names(cells, recorded.texts("rocpd_info_kernel_symbol", "display_name", "kernel_name")),
        "region": from_keys(cells["region_name_id"], {key: text for key, text in strings.items() if text}),
        "workgroup": sizes(*(cells[f"workgroup_size_{axis}"] for axis in "xyz")),
        "grid": sizes(*(cells[f"grid_size_{axis}"] for axis in "xyz")),
    }
    return Kernels(len(start), columns | spans(start, end))


def _names(cells: dict[str, np.ndarray], symbols: dict[int, str]) -> Coded:
    return from_keys(cells["kernel_id"], symbols, "kernel {}")


def _check_view(part: Part, connection: sqlite3.Connection) -> None:
    """Warn where the view `kernels` shows fewer rows than the dispatch table holds."""
    if "kernels" not in sqlite.tables(connection):
        return
    try:
        seen = connection.execute("SELECT count(*) FROM kernels").fetchone()[0]
    except sqlite3.Error as error:
        part.warn(
            "view_unusable",
            f"the view `kernels` cannot be read ({error}); the dispatch table was read instead",
        )
        return
    if seen != len(part.kernels):
        part.warn(
            "view_disagrees",
            f"the view `kernels` shows {seen} of {len(part.kernels)} dispatches (its inner joins lose rows); "
            "all dispatches were read from the table",
        )
