"""Writes rocpd databases of schema 3 from plain rows: for synthetic recordings and tests, not for measured ones.

Table and column names are those of ROCm's rocpd schema, so any reader of rocpd opens the result. Tables carry the
recording's uuid in their names, views the plain ones; the `kernels` view joins as ROCm's does, inner joins included.
"""

import json
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

_TABLES = {
    "metadata": "tag TEXT NOT NULL, value TEXT NOT NULL",
    "string": "guid TEXT, string TEXT NOT NULL UNIQUE",
    "info_node": "guid TEXT, hash BIGINT NOT NULL UNIQUE, machine_id TEXT NOT NULL UNIQUE, system_name TEXT, hostname TEXT, "
    "release TEXT, version TEXT, hardware_name TEXT, domain_name TEXT",
    "info_process": "guid TEXT, nid INTEGER, ppid INTEGER, pid INTEGER, init BIGINT, fini BIGINT, start BIGINT, "
    "end BIGINT, command TEXT, environment JSONB DEFAULT '{}', extdata JSONB DEFAULT '{}'",
    "info_thread": "guid TEXT, nid INTEGER, ppid INTEGER, pid INTEGER, tid INTEGER, name TEXT, start BIGINT, "
    "end BIGINT, extdata JSONB DEFAULT '{}'",
    "info_agent": "guid TEXT, nid INTEGER, pid INTEGER, type TEXT, absolute_index INTEGER, logical_index INTEGER, "
    "type_index INTEGER, uuid INTEGER, name TEXT, model_name TEXT, vendor_name TEXT, product_name TEXT, "
    "user_name TEXT, extdata JSONB DEFAULT '{}'",
    "info_queue": "guid TEXT, nid INTEGER, pid INTEGER, name TEXT, extdata JSONB DEFAULT '{}'",
    "info_stream": "guid TEXT, nid INTEGER, pid INTEGER, name TEXT, extdata JSONB DEFAULT '{}'",
    "info_code_object": "guid TEXT, nid INTEGER, pid INTEGER, agent_id INTEGER, uri TEXT, load_base BIGINT, "
    "load_size BIGINT, load_delta BIGINT, storage_type TEXT, extdata JSONB DEFAULT '{}'",
    "info_kernel_symbol": "guid TEXT, nid INTEGER, pid INTEGER, code_object_id INTEGER, kernel_name TEXT, "
    "display_name TEXT, kernel_object INTEGER, kernarg_segment_size INTEGER, kernarg_segment_alignment INTEGER, "
    "group_segment_size INTEGER, private_segment_size INTEGER, sgpr_count INTEGER, arch_vgpr_count INTEGER, "
    "accum_vgpr_count INTEGER, extdata JSONB DEFAULT '{}'",
    "event": "guid TEXT, category_id INTEGER, stack_id INTEGER, parent_stack_id INTEGER, correlation_id INTEGER, "
    "call_stack JSONB DEFAULT '{}', line_info JSONB DEFAULT '{}', extdata JSONB DEFAULT '{}'",
    "region": "guid TEXT, nid INTEGER, pid INTEGER, tid INTEGER, start BIGINT, end BIGINT, name_id INTEGER, "
    "event_id INTEGER, extdata JSONB DEFAULT '{}'",
    "kernel_dispatch": "guid TEXT, nid INTEGER, pid INTEGER, tid INTEGER, agent_id INTEGER, kernel_id INTEGER, "
    "dispatch_id INTEGER, queue_id INTEGER, stream_id INTEGER, start BIGINT, end BIGINT, "
    "private_segment_size INTEGER, group_segment_size INTEGER, workgroup_size_x INTEGER, workgroup_size_y INTEGER, "
    "workgroup_size_z INTEGER, grid_size_x INTEGER, grid_size_y INTEGER, grid_size_z INTEGER, "
    "region_name_id INTEGER, event_id INTEGER, extdata JSONB DEFAULT '{}'",
}
_KERNELS = """
SELECT K.id, K.guid, T.tid, R.string AS region, S.display_name AS name, K.nid, P.pid, K.agent_id,
  A.absolute_index AS agent_abs_index, K.dispatch_id, K.kernel_id, K.queue_id, K.stream_id, K."start", K."end",
  (K."end" - K."start") AS duration, K.grid_size_x AS grid_x, K.grid_size_y AS grid_y, K.grid_size_z AS grid_z,
  K.workgroup_size_x AS workgroup_x, K.workgroup_size_y AS workgroup_y, K.workgroup_size_z AS workgroup_z,
  E.stack_id, E.parent_stack_id, E.correlation_id AS corr_id
FROM rocpd_kernel_dispatch K
  JOIN rocpd_info_agent A ON A.id = K.agent_id AND A.guid = K.guid
  JOIN rocpd_event E ON E.id = K.event_id AND E.guid = K.guid
  JOIN rocpd_string R ON R.id = K.region_name_id AND R.guid = K.guid
  JOIN rocpd_info_kernel_symbol S ON S.id = K.kernel_id AND S.guid = K.guid
  JOIN rocpd_info_process P ON P.id = K.pid AND P.guid = K.guid
  JOIN rocpd_info_thread T ON T.id = K.tid AND T.guid = K.guid
"""
_NODE = 1


@dataclass(frozen=True)
class Dispatch:
    """One kernel: times in ns; `agent` is the GPU's index from 0, `region` what the record itself names."""

    name: str
    start_ns: int
    end_ns: int
    agent: int = 0
    queue: int = 1
    thread: int = 1
    region: str = ""


@dataclass(frozen=True)
class Marker:
    """One ROCTX range of a host thread, times in ns."""

    message: str
    start_ns: int
    end_ns: int
    thread: int = 1


def write_rocpd(
    path: Path, dispatches: list[Dispatch], markers: list[Marker], pid: int, product: str = "unknown"
) -> Path:
    """Write a new database with the kernels and ranges of one process; returns the path."""
    guid = f"{pid:08x}-0000-4000-8000-{len(dispatches):012x}"
    with closing(sqlite3.connect(path)) as db:
        rows = _Rows(db, guid)
        _create(db, rows.suffix)
        _info(rows, dispatches, markers, pid, product)
        for marker in markers:
            _marker(rows, marker, pid)
        for number, dispatch in enumerate(dispatches, 1):
            _dispatch(rows, dispatch, number, pid)
        db.commit()
    return path


class _Rows:
    """Inserts rows and hands out ids; strings are stored once."""

    def __init__(self, db: sqlite3.Connection, guid: str):
        self.db, self.guid, self.suffix = db, guid, "_" + guid.replace("-", "_")
        self.strings: dict[str, int] = {}
        self.symbols: dict[str, int] = {}

    def add(self, table: str, **values) -> int:
        values = {"guid": self.guid, **values} if table != "metadata" else values
        names = ", ".join(f'"{name}"' for name in values)
        marks = ", ".join("?" * len(values))
        query = f'INSERT INTO "rocpd_{table}{self.suffix}" ({names}) VALUES ({marks})'
        return int(self.db.execute(query, tuple(values.values())).lastrowid or 0)

    def string(self, text: str) -> int:
        if text not in self.strings:
            self.strings[text] = self.add("string", string=text)
        return self.strings[text]


def _create(db: sqlite3.Connection, suffix: str) -> None:
    for table, columns in _TABLES.items():
        quoted = columns.replace(" end BIGINT", ' "end" BIGINT').replace(" start BIGINT", ' "start" BIGINT')
        db.execute(f'CREATE TABLE "rocpd_{table}{suffix}" (id INTEGER PRIMARY KEY AUTOINCREMENT, {quoted})')
        db.execute(f'CREATE VIEW rocpd_{table} AS SELECT * FROM "rocpd_{table}{suffix}"')
    db.execute(f"CREATE VIEW kernels AS {_KERNELS}")


def _info(rows: _Rows, dispatches, markers, pid: int, product: str) -> None:
    rows.add("metadata", tag="schema_version", value="3")
    rows.add("metadata", tag="uuid", value=rows.suffix)
    rows.add("info_node", id=_NODE, hash=1, machine_id="0" * 32, system_name="Linux", hostname="host")
    rows.add("info_process", id=pid, nid=_NODE, pid=pid, command="", environment="{}")
    rows.string("")
    for thread in sorted({item.thread for item in (*dispatches, *markers)}):
        rows.add("info_thread", id=thread, nid=_NODE, pid=pid, tid=thread)
    for agent in sorted({item.agent for item in dispatches}):
        index = {"absolute_index": agent + 1, "logical_index": agent + 1, "type_index": agent}
        rows.add("info_agent", id=agent + 1, nid=_NODE, pid=pid, type="GPU", product_name=product, **index)
    for queue in sorted({item.queue for item in dispatches}):
        rows.add("info_queue", id=queue, nid=_NODE, pid=pid, name=f"Queue {queue}")
        rows.add("info_stream", id=queue, nid=_NODE, pid=pid, name=f"Stream {queue}")
    rows.add("info_code_object", id=1, nid=_NODE, pid=pid, agent_id=1, uri="")


def _marker(rows: _Rows, marker: Marker, pid: int) -> None:
    category = rows.string("MARKER_CORE_RANGE_API")
    event = rows.add("event", category_id=category, extdata=json.dumps({"message": marker.message}))
    place = {"nid": _NODE, "pid": pid, "tid": marker.thread, "start": marker.start_ns, "end": marker.end_ns}
    rows.add("region", **place, name_id=rows.string("roctxThreadRangeA"), event_id=event)


def _dispatch(rows: _Rows, item: Dispatch, number: int, pid: int) -> None:
    if item.name not in rows.symbols:
        names = {"kernel_name": f"{item.name}.kd", "display_name": item.name}
        rows.symbols[item.name] = rows.add(
            "info_kernel_symbol", nid=_NODE, pid=pid, code_object_id=1, **names
        )
    event = rows.add("event", category_id=rows.string("KERNEL_DISPATCH"), stack_id=10**6 + number)
    sizes = {f"workgroup_size_{axis}": 256 if axis == "x" else 1 for axis in "xyz"}
    sizes |= {f"grid_size_{axis}": 65536 if axis == "x" else 1 for axis in "xyz"}
    place = {"nid": _NODE, "pid": pid, "tid": item.thread, "agent_id": item.agent + 1}
    where = {"queue_id": item.queue, "stream_id": item.queue, "start": item.start_ns, "end": item.end_ns}
    what = {
        "kernel_id": rows.symbols[item.name],
        "dispatch_id": number,
        "region_name_id": rows.string(item.region),
    }
    rows.add("kernel_dispatch", **place, **where, **what, event_id=event, **sizes)
