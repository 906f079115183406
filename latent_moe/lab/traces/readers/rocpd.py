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
from latent_moe.lab.traces.file_trace import Calls, FileTrace, backwards, launches, spans, times
from latent_moe.lab.traces.readers import raw_files
from latent_moe.lab.traces.table import (
    Coded,
    Kernels,
    Ranges,
    constant,
    encode,
    from_keys,
    number_texts,
    sizes,
)

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
class RocpdRun:
    """One recording inside the file: a set of tables with one suffix, and one guid of it (None: the only one)."""

    connection: sqlite3.Connection
    path: Path
    suffix: str
    guid: str | None
    names: dict[str, str]
    host: str | None = None

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
        known = raw_files.columns_of(self.connection, table) if table else []
        wanted = [raw_files.quoted(c) for c in columns if c in known]
        if not table or not wanted:
            return {}
        condition, parameters = self.where() if "guid" in known else ("", ())
        value = wanted[0] if len(wanted) == 1 else f"coalesce({', '.join(wanted)})"
        rows = self.connection.execute(
            f"SELECT id, {value} FROM {raw_files.quoted(table)} {condition}", parameters
        )
        return {key: str(text) for key, text in rows if isinstance(key, int) and text is not None}


def read(path: Path, salvage: bool = False) -> FileTrace:  # noqa: ARG001 - one signature for every reader
    """Read one file. Raises InputError: damaged, or no rocpd database."""
    with raw_files.opened(path) as connection:
        part = FileTrace(path, FORMAT, Kernels(0))
        found = [_one(part, recorded) for recorded in _recorded(connection, path)]
        part.kernels = Kernels.concatenate([kernels for kernels, _ in found] or [Kernels(0)])
        part.ranges = Ranges.concatenate([ranges for _, ranges in found] or [Ranges(0)])
        _check_view(part, connection)
    return part


def is_rocpd(names: dict[str, str]) -> bool:
    """Do these tables belong to a rocpd database?"""
    return any(name == _DISPATCH or name.startswith(_DISPATCH + "_") for name in names)


def _recorded(connection: sqlite3.Connection, path: Path) -> list[RocpdRun]:
    names = {name: kind for name, kind in raw_files.tables(connection).items() if kind == "table"}
    found = []
    for suffix in sorted(
        n.removeprefix(_DISPATCH) for n in names if n == _DISPATCH or n.startswith(_DISPATCH + "_")
    ):
        guids: list = [(None,)]
        if "guid" in raw_files.columns_of(connection, _DISPATCH + suffix):
            guids = connection.execute(
                f"SELECT DISTINCT guid FROM {raw_files.quoted(_DISPATCH + suffix)}"
            ).fetchall()
        several = len(guids) > 1
        found += [
            RocpdRun(connection, path, suffix, guid if several else None, names, guid) for (guid,) in guids
        ]
    return found


def _one(part: FileTrace, recorded: RocpdRun) -> tuple[Kernels, Ranges]:
    marked = has_regions(recorded)
    cells = _dispatches(recorded, marked)
    processes = recorded.texts("rocpd_info_process", "pid")
    kernels = _kernels(part, recorded, cells, processes)
    kernels["host"] = constant(recorded.host, len(kernels))
    if recorded.host and (name := next(iter(recorded.texts("rocpd_info_node", "hostname").values()), None)):
        part.hosts[recorded.host] = name
    names = recorded.texts("rocpd_info_agent", "product_name", "model_name", "name")
    used = {names[agent] for agent in np.unique(cells["agent_id"]).tolist() if names.get(agent)}
    part.device = ", ".join(sorted(used)) or None
    if not marked:
        return kernels, Ranges(0)
    known_threads = threads(recorded)
    kernels["thread"] = thread_ids(cells["tid"], known_threads)
    kernels["correlation"], kernels["parent"] = cells["stack_id"], cells["parent_stack_id"]
    ranges, calls = read_regions(recorded, processes, known_threads)
    launches(kernels, calls)
    ranges["host"] = constant(recorded.host, len(ranges))
    return kernels, ranges


def _dispatches(recorded: RocpdRun, marked: bool) -> dict[str, np.ndarray]:
    """name -> int64 column of the dispatch table, in order of id; absent cells and columns are -1, times 0."""
    table = _DISPATCH + recorded.suffix
    known = raw_files.columns_of(recorded.connection, table)
    wanted = [name for name in _NUMBERS if name in known]
    if not {"start", "end", "kernel_id"} <= set(wanted):
        raise InputError(
            f"{recorded.path}: {table} has no start, end and kernel_id: not rocpd as this project knows it"
        )
    n, same = _constants(recorded, table, [name for name in _OFTEN_ONE if name in wanted])
    wanted = [name for name in wanted if name not in same]
    picked = [
        f"ifnull(D.{raw_files.quoted(name)}, {0 if name in ('start', 'end') else -1})" for name in wanted
    ]
    join, stacks = _event_join(recorded, known) if marked else ("", [])
    picked += [f"ifnull(E.{name}, 0)" for name in stacks]
    condition, parameters = recorded.where("D.")
    statement = f"SELECT {', '.join(picked)} FROM {raw_files.quoted(table)} D {join} {condition}"
    width = len(wanted) + len(stacks)
    strict = [wanted.index("start"), wanted.index("end")]
    values = raw_files.integers(recorded.connection, statement, width, n, recorded.path, parameters, strict)
    absent = dict.fromkeys(_NUMBERS, -1) | {"stack_id": 0, "parent_stack_id": 0} | same
    columns = {name: np.broadcast_to(np.int64(value), n) for name, value in absent.items()}
    return columns | dict(zip([*wanted, *stacks], values, strict=True))


def _constants(recorded: RocpdRun, table: str, names: list[str]) -> tuple[int, dict[str, int]]:
    """(number of rows, {column: its value} for the columns that hold one value): not to be fetched row by row."""
    condition, parameters = recorded.where()
    source = f"FROM {raw_files.quoted(table)} {condition}"
    n = recorded.connection.execute(f"SELECT count(*) {source}", parameters).fetchone()[0]
    if not n or not names:
        return n, {}
    picked = ", ".join(map(raw_files.quoted, names))
    first = recorded.connection.execute(f"SELECT {picked} {source} LIMIT 1", parameters).fetchone()
    whole = {name: value for name, value in zip(names, first, strict=True) if isinstance(value, int)}
    return n, _unchanging(recorded, f"{source} {'AND' if condition else 'WHERE'}", parameters, whole)


def _unchanging(recorded: RocpdRun, source: str, parameters: tuple, first: dict[str, int]) -> dict[str, int]:
    """The columns in which no row differs from the first: one pass for all, halves where one of them differs."""
    if not first:
        return {}
    differs = " OR ".join(f"{raw_files.quoted(name)} IS NOT ?" for name in first)
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


def _event_join(recorded: RocpdRun, known: list[str]) -> tuple[str, list[str]]:
    """(the join of the dispatches' events, which of the stack columns they have)."""
    events = recorded.table("rocpd_event")
    if not events or "event_id" not in known:
        return "", []
    has = raw_files.columns_of(recorded.connection, events)
    same = " AND E.guid = D.guid" if recorded.guid else ""
    join = f"LEFT JOIN {raw_files.quoted(events)} E ON E.id = D.event_id{same}"
    return join, [name for name in ("stack_id", "parent_stack_id") if name in has]


def _kernels(
    part: FileTrace, recorded: RocpdRun, cells: dict[str, np.ndarray], processes: dict[int, str]
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


def _check_view(part: FileTrace, connection: sqlite3.Connection) -> None:
    """Warn where the view `kernels` shows fewer rows than the dispatch table holds."""
    if "kernels" not in raw_files.tables(connection):
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


def has_regions(recorded) -> bool:
    """Does the recording hold any range or API call, with the events that name their kinds?"""
    tables = [recorded.table(name) for name in ("rocpd_region", "rocpd_event", "rocpd_string")]
    if not all(tables):
        return False
    return bool(
        recorded.connection.execute(f"SELECT 1 FROM {raw_files.quoted(tables[0])} LIMIT 1").fetchall()
    )


def threads(recorded) -> dict[int, int]:
    """Row id -> thread id."""
    found = recorded.texts("rocpd_info_thread", "tid")
    return {key: int(text) for key, text in found.items() if text.lstrip("-").isdigit()}


def thread_ids(rows: np.ndarray, known: dict[int, int]) -> np.ndarray:
    """Thread ids of row ids; a row that is missing keeps its row id, which rocprofv3 takes from the thread."""
    unique, inverse = np.unique(rows, return_inverse=True)
    return np.array([known.get(int(row), int(row)) for row in unique], dtype=np.int64)[inverse.reshape(-1)]


def read_regions(recorded, processes: dict[int, str], known_threads: dict[int, int]) -> tuple[Ranges, Calls]:
    """(ranges, API calls) of one recording."""
    categories = recorded.texts("rocpd_string", "string")
    markers = [key for key, text in categories.items() if text.startswith("MARKER_")]
    calls = [key for key, text in categories.items() if text.startswith("HIP_")]
    return _ranges(recorded, markers, processes, known_threads), _calls(
        recorded, calls, processes, known_threads
    )


def _from(recorded, keys: list[int], extra: str = "") -> tuple[str, tuple]:
    events, condition = recorded.table("rocpd_event"), recorded.where("R.")
    same = " AND E.guid = R.guid" if recorded.guid else ""
    listed = ", ".join(map(str, keys)) or "NULL"
    statement = (
        f"FROM {raw_files.quoted(recorded.table('rocpd_region'))} R"
        f" JOIN {raw_files.quoted(events)} E ON E.id = R.event_id{same} {extra}"
        f" {condition[0] or 'WHERE 1'} AND E.category_id IN ({listed})"
    )
    return statement, condition[1]


_PICKED = (
    'ifnull(R.pid, -1), ifnull(R.tid, -1), ifnull(R.start, 0), ifnull(R."end", 0), ifnull(E.stack_id, 0)'
)


def _cells(recorded, source: str, parameters: tuple) -> np.ndarray:
    """[5, n]: process row, thread row, start, end, stack id."""
    count = recorded.connection.execute(f"SELECT count(*) {source}", parameters).fetchone()[0]
    return raw_files.integers(
        recorded.connection, f"SELECT {_PICKED} {source}", 5, count, recorded.path, parameters
    )


def _calls(recorded, keys: list[int], processes, known_threads) -> Calls:
    source, parameters = _from(recorded, keys)
    cells = _cells(recorded, source, parameters)
    columns = {
        "process": from_keys(cells[0], processes, "{}"),
        "thread": thread_ids(cells[1], known_threads),
        "start_ns": cells[2],
        "correlation": cells[4],
    }
    return Calls(cells.shape[1], columns)


def _ranges(recorded, keys: list[int], processes, known_threads) -> Ranges:
    has_message = "extdata" in raw_files.columns_of(recorded.connection, recorded.table("rocpd_event"))
    message = "E.extdata" if has_message else "NULL"
    strings = raw_files.quoted(recorded.table("rocpd_string"))
    join = f"LEFT JOIN {strings} S ON S.id = R.name_id" + (" AND S.guid = R.guid" if recorded.guid else "")
    source, parameters = _from(recorded, keys, join)
    cells = _cells(recorded, source, parameters)
    rows = recorded.connection.execute(f"SELECT S.string, {message} {source}", parameters)
    columns = {
        "process": from_keys(cells[0], processes, "{}"),
        "thread": thread_ids(cells[1], known_threads),
        "name": _named(rows),
        "start_ns": cells[2],
        "end_ns": cells[3],
        "correlation": cells[4],
        "domain": constant("host", cells.shape[1]),
        "source": constant(str(recorded.path), cells.shape[1]),
    }
    ranges = Ranges(cells.shape[1], columns)
    return ranges.take(cells[3] > cells[2])


def _named(rows) -> Coded:
    """The marker's own message where the event has one, else the region's name (roctxRangePushA and the like)."""
    import msgspec

    class Extra(msgspec.Struct):
        message: str | None = None

    decoder, texts = msgspec.json.Decoder(Extra), []
    for name, extra in rows:
        try:
            message = decoder.decode(extra).message if isinstance(extra, str | bytes) else None
        except (msgspec.MsgspecError, RecursionError):
            message = None
        texts.append(message or (str(name) if name is not None else None))
    return encode(texts)
