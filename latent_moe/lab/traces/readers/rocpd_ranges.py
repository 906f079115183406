"""Ranges and API calls of a rocpd database: both are rows of rocpd_region, told apart by their event's category."""

import numpy as np

from latent_moe.lab.traces.file_trace import Calls
from latent_moe.lab.traces.readers import sqlite
from latent_moe.lab.traces.table import Coded, Ranges, constant, encode, from_keys


def has_regions(recorded) -> bool:
    """Does the recording hold any range or API call, with the events that name their kinds?"""
    tables = [recorded.table(name) for name in ("rocpd_region", "rocpd_event", "rocpd_string")]
    if not all(tables):
        return False
    return bool(recorded.connection.execute(f"SELECT 1 FROM {sqlite.quoted(tables[0])} LIMIT 1").fetchall())


def threads(recorded) -> dict[int, int]:
    """Row id -> thread id."""
    found = recorded.texts("rocpd_info_thread", "tid")
    return {key: int(text) for key, text in found.items() if text.lstrip("-").isdigit()}


def thread_ids(rows: np.ndarray, known: dict[int, int]) -> np.ndarray:
    """Thread ids of row ids; a row that is missing keeps its row id, which rocprofv3 takes from the thread."""
    unique, inverse = np.unique(rows, return_inverse=True)
    return np.array([known.get(int(row), int(row)) for row in unique], dtype=np.int64)[inverse.reshape(-1)]


def read(recorded, processes: dict[int, str], known_threads: dict[int, int]) -> tuple[Ranges, Calls]:
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
        f"FROM {sqlite.quoted(recorded.table('rocpd_region'))} R"
        f" JOIN {sqlite.quoted(events)} E ON E.id = R.event_id{same} {extra}"
        f" {condition[0] or 'WHERE 1'} AND E.category_id IN ({listed})"
    )
    return statement, condition[1]


_PICKED = (
    'ifnull(R.pid, -1), ifnull(R.tid, -1), ifnull(R.start, 0), ifnull(R."end", 0), ifnull(E.stack_id, 0)'
)


def _cells(recorded, source: str, parameters: tuple) -> np.ndarray:
    """[5, n]: process row, thread row, start, end, stack id."""
    count = recorded.connection.execute(f"SELECT count(*) {source}", parameters).fetchone()[0]
    return sqlite.integers(
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
    has_message = "extdata" in sqlite.columns_of(recorded.connection, recorded.table("rocpd_event"))
    message = "E.extdata" if has_message else "NULL"
    strings = sqlite.quoted(recorded.table("rocpd_string"))
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
