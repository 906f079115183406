"""Small recordings of every format, written by the tests themselves; the benchmarks write the same, larger."""

import json
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

GEMM = "Cijk_Alik_Bljk_BBS_BH_Bias_MT256x128x64_MI16x16x1_SN"
NCCL = "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)"
NAMES = (GEMM, NCCL, "void at::native::vectorized_elementwise_kernel<4, float>(int, float)", "rmsnorm")


@dataclass(frozen=True)
class Span:
    """One kernel to write; times in ns."""

    name: str
    start: int
    end: int
    agent: int = 4
    queue: int = 1
    thread: int = 77
    correlation: int = 0


def spans(n: int, start: int = 5_000_000, length: int = 400, gap: int = 100, names=NAMES) -> Iterator[Span]:
    """n kernels one after the other."""
    for i in range(n):
        begin = start + i * (length + gap)
        yield Span(names[i % len(names)], begin, begin + length, correlation=i + 1)


COLUMNS_7 = (
    *("Kind", "Agent_Id", "Queue_Id", "Stream_Id", "Thread_Id", "Dispatch_Id", "Kernel_Id", "Kernel_Name"),
    *("Correlation_Id", "Start_Timestamp", "End_Timestamp", "LDS_Block_Size", "Scratch_Size", "VGPR_Count"),
    *("Accum_VGPR_Count", "SGPR_Count", "Workgroup_Size_X", "Workgroup_Size_Y", "Workgroup_Size_Z"),
    *("Grid_Size_X", "Grid_Size_Y", "Grid_Size_Z"),
)


def csv_trace(path: Path, kernels: Iterable[Span]) -> Path:
    """rocprofv3's kernel_trace.csv in the layout of ROCm 7.0."""
    with path.open("w", newline="") as file:
        file.write(",".join(f'"{name}"' for name in COLUMNS_7) + "\n")
        for i, k in enumerate(kernels, 1):
            file.write(
                f'"KERNEL_DISPATCH","Agent {k.agent}",{k.queue},0,{k.thread},{i},{1 + NAMES.index(k.name)},"{k.name}",'
                f"{k.correlation},{k.start},{k.end},0,0,8,0,16,256,1,1,65536,1,1\n"
            )
    return path


def tool_entry(
    kernels: Iterable[Span], pid: int = 77, markers: dict[str, tuple[int, int]] | None = None
) -> dict:
    """One process's entry of rocprofv3's JSON."""
    marks = list((markers or {}).items())
    handle = {"handle": 0}
    return {
        "metadata": {"pid": pid, "command": ["./app"]},
        "agents": [{"id": {"handle": 1000 + node}, "type": 2, "node_id": node} for node in range(8)],
        "strings": {"marker_api": [{"key": 9000 + i, "value": name} for i, (name, _) in enumerate(marks)]},
        "kernel_symbols": [
            {"kernel_id": i, "kernel_name": f"{name}.kd", "formatted_kernel_name": name}
            for i, name in enumerate(NAMES)
        ],
        "buffer_records": {
            "kernel_dispatch": [
                {
                    "thread_id": k.thread,
                    "correlation_id": {"internal": k.correlation, "external": 0},
                    "start_timestamp": k.start,
                    "end_timestamp": k.end,
                    "dispatch_info": {
                        "agent_id": {"handle": 1000 + k.agent},
                        "queue_id": {"handle": k.queue},
                        "kernel_id": NAMES.index(k.name),
                        "workgroup_size": {"x": 256, "y": 1, "z": 1},
                        "grid_size": {"x": 65536, "y": 1, "z": 1},
                    },
                    "stream_id": handle,
                }
                for k in kernels
            ],
            "marker_api": [
                {
                    "thread_id": 77,
                    "correlation_id": {"internal": 9000 + i},
                    "start_timestamp": begin,
                    "end_timestamp": end,
                }
                for i, (_, (begin, end)) in enumerate(marks)
            ],
        },
    }


def tool_json(path: Path, *entries: dict) -> Path:
    """rocprofv3's JSON with one entry per process."""
    path.write_text(json.dumps({"rocprofiler-sdk-tool": list(entries)}))
    return path


def kineto_events(kernels: Iterable[Span]) -> list[dict]:
    """Kernels as the PyTorch profiler writes them, times in us."""
    return [
        {
            "ph": "X",
            "cat": "kernel",
            "name": k.name,
            "pid": k.agent,
            "tid": k.queue,
            "ts": k.start / 1000,
            "dur": (k.end - k.start) / 1000,
            "args": {"device": k.agent, "stream": k.queue, "correlation": k.correlation},
        }
        for k in kernels
    ]


def kineto_json(path: Path, events: list[dict], **around) -> Path:
    """A PyTorch-profiler file with these events."""
    path.write_text(json.dumps({"schemaVersion": 1, **around, "traceEvents": events, "traceName": "x.json"}))
    return path


_TABLES = {
    "metadata": "id INTEGER PRIMARY KEY, tag TEXT, value TEXT",
    "string": "id INTEGER PRIMARY KEY, guid TEXT, string TEXT",
    "info_process": "id INTEGER PRIMARY KEY, guid TEXT, nid INT, pid INT, command TEXT, environment TEXT",
    "info_thread": "id INTEGER PRIMARY KEY, guid TEXT, nid INT, pid INT, tid INT",
    "info_agent": "id INTEGER PRIMARY KEY, guid TEXT, nid INT, pid INT, type TEXT, absolute_index INT",
    "info_queue": "id INTEGER PRIMARY KEY, guid TEXT, nid INT, pid INT, name TEXT",
    "info_stream": "id INTEGER PRIMARY KEY, guid TEXT, nid INT, pid INT, name TEXT",
    "info_kernel_symbol": "id INTEGER PRIMARY KEY, guid TEXT, nid INT, pid INT, kernel_name TEXT, display_name TEXT",
    "event": "id INTEGER PRIMARY KEY, guid TEXT, category_id INT, stack_id INT, parent_stack_id INT,"
    " correlation_id INT, extdata TEXT",
    "region": 'id INTEGER PRIMARY KEY, guid TEXT, nid INT, pid INT, tid INT, start BIGINT, "end" BIGINT,'
    " name_id INT, event_id INT, extdata TEXT",
    "kernel_dispatch": "id INTEGER PRIMARY KEY, guid TEXT, nid INT, pid INT, tid INT, agent_id INT, kernel_id INT,"
    ' dispatch_id INT, queue_id INT, stream_id INT, start BIGINT, "end" BIGINT, workgroup_size_x INT,'
    " workgroup_size_y INT, workgroup_size_z INT, grid_size_x INT, grid_size_y INT, grid_size_z INT,"
    " region_name_id INT, event_id INT",
}
_VIEW = (
    'SELECT K.id, S.display_name AS name, K.start, K."end", K."end" - K.start AS duration FROM {k} K'
    " JOIN {a} A ON A.id = K.agent_id JOIN {e} E ON E.id = K.event_id JOIN {r} R ON R.id = K.region_name_id"
    " JOIN {s} S ON S.id = K.kernel_id JOIN {t} T ON T.id = K.tid"
)


def rocpd(
    path: Path,
    kernels: Iterable[Span],
    guid: str = "00000001-aaaa",
    pid: int = 77,
    markers: dict[str, tuple[int, int]] | None = None,
    threads: Iterable[int] = (77,),
    schema: str = "3",
) -> Path:
    """A rocpd database (or one more recording in it): suffixed tables, plain view names, one event per dispatch."""
    suffix = "_" + guid.replace("-", "_")
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA journal_mode = OFF")
        db.execute("PRAGMA synchronous = OFF")
        for name, columns in _TABLES.items():
            db.execute(f'CREATE TABLE "rocpd_{name}{suffix}" ({columns})')
        _info(db, suffix, guid, pid, threads, schema)
        dispatches = f"rocpd_kernel_dispatch{suffix}"
        db.executemany(
            f'INSERT INTO "{dispatches}" VALUES ({",".join("?" * 20)})', _dispatch_rows(kernels, guid, pid)
        )
        db.execute(
            f'INSERT INTO "rocpd_event{suffix}" SELECT id, guid, 2, id, 0, 0, \'{{}}\' FROM "{dispatches}"'
        )
        _regions(db, suffix, guid, pid, markers or {})
        tables = {"k": dispatches, "a": "rocpd_info_agent", "e": "rocpd_event", "r": "rocpd_string"}
        tables |= {"s": "rocpd_info_kernel_symbol", "t": "rocpd_info_thread"}
        named = {key: f'"{name if key == "k" else name + suffix}"' for key, name in tables.items()}
        if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'kernels'").fetchall():
            db.execute(f"CREATE VIEW kernels AS {_VIEW.format(**named)}")
    db.close()
    return path


def _dispatch_rows(kernels: Iterable[Span], guid: str, pid: int) -> Iterator[tuple]:
    for i, k in enumerate(kernels, 1):
        kernel = 1 + NAMES.index(k.name)
        sizes = (256, 1, 1, 65536, 1, 1)
        yield (i, guid, 1, pid, k.thread, k.agent, kernel, i, k.queue, 0, k.start, k.end, *sizes, 1, i)


def _info(db, suffix: str, guid: str, pid: int, threads: Iterable[int], schema: str) -> None:
    rows = {
        "metadata": [(1, "schema_version", schema), (2, "guid", guid)],
        "string": [
            (1, guid, ""),
            (2, guid, "KERNEL_DISPATCH"),
            (3, guid, "MARKER_CORE_API"),
            (4, guid, "roctxRangePushA"),
        ],
        "info_process": [(pid, guid, 1, pid, "python serve.py --token SECRET", '{"HF_TOKEN": "SECRET"}')],
        "info_thread": [(tid, guid, 1, pid, tid) for tid in threads],
        "info_agent": [(node, guid, 1, pid, "GPU", node) for node in range(8)],
        "info_queue": [(1, guid, 1, pid, "Queue 0")],
        "info_stream": [(0, guid, 1, pid, "Default Stream")],
        "info_kernel_symbol": [(i, guid, 1, pid, f"{name}.kd", name) for i, name in enumerate(NAMES, 1)],
    }
    for name, values in rows.items():
        marks = ",".join("?" * len(values[0])) if values else ""
        db.executemany(f'INSERT INTO "rocpd_{name}{suffix}" VALUES ({marks})', values) if values else None


def _regions(db, suffix: str, guid: str, pid: int, markers: dict[str, tuple[int, int]]) -> None:
    first = db.execute(f'SELECT coalesce(max(id), 0) FROM "rocpd_event{suffix}"').fetchone()[0]
    for i, (name, (begin, end)) in enumerate(markers.items(), 1):
        extra = json.dumps({"message": name})
        event = (first + i, guid, 3, 900_000 + i, 0, 0, extra)
        db.execute(f'INSERT INTO "rocpd_event{suffix}" VALUES (?,?,?,?,?,?,?)', event)
        region = (i, guid, 1, pid, 77, begin, end, 4, first + i, "{}")
        db.execute(f'INSERT INTO "rocpd_region{suffix}" VALUES (?,?,?,?,?,?,?,?,?,?)', region)


def pftrace(path: Path, kernels: Iterable[Span], pid: int = 77) -> Path:
    """rocprofv3's Perfetto trace: slices of category kernel_dispatch, names interned once, begin_ns and end_ns noted."""
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

    trace = Trace()
    trace.packet.add(trusted_packet_sequence_id=2).track_descriptor.process.pid = pid
    interned: dict[str, int] = {}
    for k in kernels:
        packet = trace.packet.add(timestamp=k.start, trusted_packet_sequence_id=2, sequence_flags=2)
        event = packet.track_event
        event.type, event.track_uuid = 1, k.queue
        if k.name not in interned:
            interned[k.name] = len(interned) + 1
            packet.interned_data.event_names.add(iid=interned[k.name], name=k.name)
        event.name_iid = interned[k.name]
        event.categories.append("kernel_dispatch")
        for name, value in (("agent", k.agent), ("queue", k.queue), ("begin_ns", k.start), ("end_ns", k.end)):
            event.debug_annotations.add(name=name, uint_value=value)
        end = trace.packet.add(timestamp=k.end, trusted_packet_sequence_id=2, sequence_flags=2).track_event
        end.type, end.track_uuid = 2, k.queue
    path.write_bytes(trace.SerializeToString())
    return path
