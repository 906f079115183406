"""Any kernel table for other programs: Chrome-trace JSON for Perfetto's UI, and Parquet, which is read back too.

One process a device, one thread a queue; kernels that overlap on one queue go to lanes beside it, since a viewer would
draw them as nested calls. Ranges of the host get a process of their own. Times count from the first event.
"""

import gzip
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from latent_moe.errors import InputError
from latent_moe.lab.traces.file_trace import FileTrace
from latent_moe.lab.traces.table import (
    KERNEL_COLUMNS,
    MISSING,
    Coded,
    Columns,
    Kernels,
    Trace,
    TraceNote,
    group_codes,
)

_TEXTS = ("kind", "library", "region", "grid", "workgroup")
_NUMBERS = ("M", "N", "K", "rank")


def write_chrome_trace(trace: Trace, path: str | Path) -> Path:
    """Write trace's kernels and ranges to `path` (packed when it ends in .gz); returns the path.

    Kernels without a time are left out and counted in the file's `otherData`. Raises InputError when the file cannot be
    written.
    """
    path = Path(path)
    try:
        with gzip.open(path, "wt") if path.suffix == ".gz" else path.open("w", encoding="utf-8") as file:
            file.writelines(_document(trace))
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror or error})") from None
    return path


def _document(trace: Trace) -> Iterator[str]:
    kernels = trace.kernels.take(np.asarray(trace.kernels["timed"]))
    first = _first_ns(kernels, trace)
    other = {
        "start_ns": first,
        "untimed_kernels": len(trace.kernels) - len(kernels),
        "formats": trace.formats,
        "partial": trace.partial,
    }
    yield f'{{"schemaVersion":1,"displayTimeUnit":"ns","otherData":{json.dumps(other)},"traceEvents":[\n'
    yield ",\n".join([*_kernel_names(kernels), *_range_names(trace)])
    for event in (*_kernels(kernels, first), *_ranges(trace, first)):
        yield ",\n" + event
    yield "\n]}\n"


def _first_ns(kernels: Kernels, trace: Trace) -> int:
    starts = [int(table["start_ns"].min()) for table in (kernels, trace.ranges) if len(table)]
    return min(starts, default=0)


def _devices(kernels: Kernels) -> np.ndarray:
    """A viewer's process number for each kernel's device, from 1."""
    return np.unique(group_codes(kernels, ("process", "agent")), return_inverse=True)[1].reshape(-1) + 1


def _threads(kernels: Kernels) -> tuple[np.ndarray, np.ndarray]:
    """(thread number from 1, lane from 0) for each kernel."""
    queues = np.unique(group_codes(kernels, ("process", "agent", "queue")), return_inverse=True)[1].reshape(
        -1
    )
    lanes = np.zeros(len(kernels), dtype=np.int64)
    for queue in np.unique(queues):
        rows = np.flatnonzero(queues == queue)
        lanes[rows] = _lanes(kernels["start_ns"][rows], kernels["end_ns"][rows])
    pairs = queues * (int(lanes.max(initial=0)) + 1) + lanes
    return np.unique(pairs, return_inverse=True)[1].reshape(-1) + 1, lanes


def _lanes(start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """The first lane that is free when each interval begins; all 0 where nothing overlaps."""
    order = np.argsort(start, kind="stable")
    lanes = np.zeros(len(start), dtype=np.int64)
    if len(start) < 2 or bool((start[order][1:] >= np.maximum.accumulate(end[order])[:-1]).all()):
        return lanes
    free: list[int] = []
    for row, begin, finish in zip(order.tolist(), start[order].tolist(), end[order].tolist(), strict=True):
        lane = next((place for place, over in enumerate(free) if over <= begin), len(free))
        free[lane : lane + 1] = [finish]
        lanes[row] = lane
    return lanes


def _kernel_names(kernels: Kernels) -> Iterator[str]:
    devices, (threads, lanes) = _devices(kernels), _threads(kernels)
    for row in np.unique(threads, return_index=True)[1]:
        device = f"{_text(kernels['agent'], row)} (process {_text(kernels['process'], row)})"
        lane = f", lane {lanes[row] + 1}" if lanes[row] else ""
        yield _name("process_name", devices[row], 0, device)
        yield _name("thread_name", devices[row], threads[row], f"queue {_text(kernels['queue'], row)}{lane}")


def _host(trace: Trace) -> np.ndarray:
    """Process numbers of the ranges, above those of the devices."""
    codes = np.unique(trace.ranges["process"].codes, return_inverse=True)[1].reshape(-1)
    return codes + 1_000_001


def _range_names(trace: Trace) -> Iterator[str]:
    hosts = _host(trace)
    for row in np.unique(hosts, return_index=True)[1]:
        yield _name("process_name", hosts[row], 0, f"ranges of process {_text(trace.ranges['process'], row)}")


def _name(what: str, process: int, thread: int, text: str) -> str:
    event = {"ph": "M", "name": what, "pid": int(process), "tid": int(thread), "args": {"name": text}}
    return json.dumps(event)


def _text(column: Coded, row: int) -> str:
    code = int(column.codes[row])
    return column.values[code] if code >= 0 else "?"


def _kernels(kernels: Kernels, first: int) -> Iterator[str]:
    devices, (threads, _) = _devices(kernels), _threads(kernels)
    texts = {name: _quoted(kernels[name]) for name in ("name", *_TEXTS)}
    numbers = {name: np.asarray(kernels[name]).tolist() for name in _NUMBERS}
    times = _times(kernels, first)
    places = zip(devices.tolist(), threads.tolist(), times, strict=True)
    for row, (device, thread, (ts, dur)) in enumerate(places):
        said = [f'"{name}":{texts[name][row]}' for name in _TEXTS if texts[name][row] is not None]
        said += [f'"{name}":{numbers[name][row]}' for name in _NUMBERS if numbers[name][row] >= 0]
        where = f'"pid":{device},"tid":{thread},"ts":{ts},"dur":{dur}'
        yield (
            f'{{"ph":"X","cat":"kernel","name":{texts["name"][row] or json.dumps("?")},{where},'
            f'"args":{{"device":{device - 1},"stream":{thread},{",".join(said)}}}}}'
        ).replace(",}", "}")


def _quoted(column: Coded) -> list[str | None]:
    """Each row's text as JSON, every text encoded once."""
    values = [*(json.dumps(value) for value in column.values), None]
    return [values[code] for code in column.codes.tolist()]


def _times(table: Columns, first: int) -> Iterable[tuple[str, str]]:
    """(ts, dur) in microseconds, exact to the nanosecond as text."""
    starts = (np.asarray(table["start_ns"]) - first).tolist()
    lasts = np.asarray(table["end_ns"] if "dur_ns" not in table.fields else table["dur_ns"]).tolist()
    if "dur_ns" not in table.fields:
        lasts = [end - first - start for end, start in zip(lasts, starts, strict=True)]
    return [(_us(start), _us(length)) for start, length in zip(starts, lasts, strict=True)]


def _us(ns: int) -> str:
    sign = "-" if ns < 0 else ""
    return f"{sign}{abs(ns) // 1000}.{abs(ns) % 1000:03d}"


def _ranges(trace: Trace, first: int) -> Iterator[str]:
    ranges, hosts = trace.ranges, _host(trace).tolist()
    names, threads = _quoted(ranges["name"]), np.asarray(ranges["thread"]).tolist()
    for row, (ts, dur) in enumerate(_times(ranges, first)):
        yield (
            f'{{"ph":"X","cat":"user_annotation","name":{names[row] or json.dumps("?")},'
            f'"pid":{hosts[row]},"tid":{max(threads[row], 0)},"ts":{ts},"dur":{dur}}}'
        )


SAVED = "saved table"
_META = b"latent_moe"


def write_parquet(trace: Trace, path: str | Path) -> Path:
    """Write trace's kernel table, every column, as Parquet; returns the path.

    Raises InputError when pyarrow is missing or the file cannot be written.
    """
    pa, parquet = _pyarrow("write")
    kernels = trace.kernels
    columns = {name: _arrow(pa, kernels[name]) for name in KERNEL_COLUMNS if name in kernels.columns}
    about: dict = {"partial": trace.partial, "device": trace.device, "formats": trace.formats}
    about["notes"] = [[note.code, note.message] for note in trace.warnings]
    table = pa.table(columns).replace_schema_metadata({_META: json.dumps(about).encode()})
    path = Path(path)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        parquet.write_table(table, part)
        part.replace(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror or error})") from None
    finally:
        part.unlink(missing_ok=True)
    return path


def read_parquet(path: Path, salvage: bool = False) -> FileTrace:
    """Read what `write_parquet` wrote. Raises InputError: damaged, or another program's table."""
    del salvage  # A cut Parquet file has no directory of its columns: nothing of it can be read.
    pa, parquet = _pyarrow("read")
    try:
        table = parquet.read_table(path)
        table.validate(full=True)
        about = json.loads((table.schema.metadata or {})[_META])
        columns = {
            name: _column(name, table.column(name)) for name in table.column_names if name in KERNEL_COLUMNS
        }
        file = FileTrace(path, SAVED, Kernels(table.num_rows, columns))
        file.partial, file.device = bool(about["partial"]), about["device"] and str(about["device"])
        file.warnings = [TraceNote(str(code), str(message)) for code, message in about["notes"]]
    except (pa.ArrowException, OSError, KeyError, ValueError, TypeError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"{path}: no table that `kernels --save` wrote ({first})") from None
    return file


def _pyarrow(what: str):
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise InputError(f"pyarrow is needed to {what} Parquet: pip install 'latent-moe[parquet]'") from None
    return pyarrow, pyarrow.parquet


def _arrow(pa, column):
    """A column as Arrow has it: texts as a dictionary, absent ones as null."""
    if not isinstance(column, Coded):
        return pa.array(np.ascontiguousarray(column))
    absent = column.codes < 0
    return pa.DictionaryArray.from_arrays(
        pa.array(np.ascontiguousarray(column.codes), mask=absent), pa.array(column.values, pa.string())
    )


def _column(name: str, chunked) -> Coded | np.ndarray:
    """A column as the kernel table has it. Raises ValueError where it is of another type."""
    array = chunked.unify_dictionaries().combine_chunks()
    if name in MISSING:
        values = array.to_numpy(zero_copy_only=False)
        if values.dtype != (bool if isinstance(MISSING[name], bool) else np.int64):
            raise ValueError(f"column {name} holds {array.type}")
        return values
    if not hasattr(array, "dictionary") or str(array.type.value_type) not in ("string", "large_string"):
        raise ValueError(f"column {name} holds {array.type}")
    codes = array.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    values = ["" if text is None else text for text in array.dictionary.to_pylist()]
    if len(codes) and not -1 <= int(codes.min()) <= int(codes.max()) < len(values):
        raise ValueError(f"column {name} has no text for some rows")
    return Coded(codes, values)
