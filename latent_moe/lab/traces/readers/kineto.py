"""Reader for the PyTorch profiler's JSON (Chrome trace events), of ROCm and CUDA builds, graph replay included.

Kernels are the events of category "kernel"; their `ts` and `dur` are microseconds with three decimals. Ranges are
user_annotation (host) and gpu_user_annotation (device). A kernel finds its launch through `correlation`, and the
PyTorch op around it, with that op's input sizes, through "External id" or the launch's time.
"""

from pathlib import Path

import msgspec
import numpy as np

from latent_moe.errors import InputError
from latent_moe.lab.traces.file_trace import Calls, FileTrace, ids, launches
from latent_moe.lab.traces.readers.kineto_ops import attach, cpu_kernels
from latent_moe.lab.traces.readers.kineto_stream import Args, Event, EventStream
from latent_moe.lab.traces.table import Coded, Columns, Kernels, Ranges, constant, encode

FORMAT, EXPORT = "PyTorch profiler JSON", "exported table"
_NO_ARGS = Args()
_RANGES = {"user_annotation": "host", "gpu_user_annotation": "device"}
_COPIES = {"gpu_memcpy", "gpu_memset"}
# Copies of less than this share of the kernels' time are not worth a word.
_COPIES_SHARE = 0.05
_CALLS = {"cuda_runtime", "cuda_driver", "hip_runtime", "runtime", "driver"}
# Beyond this a double no longer holds a nanosecond in microseconds.
_EXACT_US = (1 << 53) / 1000


class Ops(Columns):
    """PyTorch ops (cpu_op); `dims` is absent where the profiler recorded no input sizes."""

    fields = ("thread", "start_ns", "end_ns", "external", "op", "dims")


class Distributed(msgspec.Struct):
    rank: int = -1


class Other(msgspec.Struct):
    # Our own export begins at 0 and says here where it began; PyTorch's files have no such field.
    start_ns: int | None = None


class Rest(msgspec.Struct):
    distributed: Distributed = msgspec.field(name="distributedInfo", default_factory=Distributed)
    other: Other = msgspec.field(name="otherData", default_factory=Other)


class _Collected:
    """Tables of one batch after the other, joined at the end."""

    def __init__(self):
        self.kernels, self.external, self.ranges, self.calls, self.ops = [], [], [], [], []
        self.unread, self.pid = 0, None
        self.copies, self.copies_us = 0, 0.0

    def add(self, path: Path, batch) -> None:
        self.unread += batch.unread
        spans = [e for e in batch.events if e.ph == "X" or e.ph is None]
        kernels = [e for e in spans if e.cat in ("kernel", "Kernel")]
        ranges = [e for e in spans if e.cat in _RANGES and _placed(e)]
        calls = [e for e in spans if e.cat in _CALLS and _placed(e)]
        ops = [e for e in spans if e.cat == "cpu_op" and _placed(e)]
        copies = [e.dur for e in spans if e.cat in _COPIES and e.dur]
        self.copies, self.copies_us = self.copies + len(copies), self.copies_us + sum(copies)
        for event in (ranges, calls, ops):
            self.pid = self.pid if self.pid is not None or not event else event[0].pid
        self.external.append(ids([(e.args or _NO_ARGS).external for e in kernels], -1))
        self.kernels += [_kernels(path, kernels)]
        self.ranges += [_ranges(ranges)] if ranges else []
        self.calls += [_calls(calls)] if calls else []
        self.ops += [_ops(ops)] if ops else []


def read(path: Path, salvage: bool = False) -> FileTrace:
    """Read one file, in memory that does not grow with it beyond the kernels, launches and sized ops themselves.

    Raises InputError: cut (with the byte), malformed, no event list, or a kernel whose own times are damaged.
    """
    stream, found = EventStream(path, salvage=salvage), _Collected()
    for batch in stream:
        found.add(path, batch)
    part = FileTrace(path, FORMAT, Kernels.concatenate(found.kernels or [Kernels(0)]))
    _check_end(part, stream, salvage)
    _check_damage(part, stream, found)
    _check_copies(part, found)
    _label(part, stream, found)
    return part


def _check_end(part: FileTrace, stream: EventStream, salvage: bool) -> None:
    if not stream.cut:
        return
    if not salvage:
        raise InputError(
            f"{part.path}: truncated JSON, it ends at byte {stream.size} in the middle of its event list"
        )
    part.partial = True
    part.warn("partial", f"truncated at byte {stream.size}: only the events before it were read")


def _check_damage(part: FileTrace, stream: EventStream, found: _Collected) -> None:
    kernels = part.kernels
    if found.unread:
        part.warn("damaged_record", f"{found.unread} events cannot be read; none of them is a whole kernel")
    elif stream.cleaned:
        part.warn("damaged_text", "read past bytes that are not JSON")
    if len(kernels) and float(np.abs(kernels["start_ns"]).max()) / 1000 > _EXACT_US:
        part.warn(
            "coarse_times", "start times are too large for their number format: they are good to about 0.3 us"
        )
    negative = np.asarray(kernels["flagged"])
    if negative.any():
        part.warn(
            "negative_duration",
            f"{int(negative.sum())} kernels have a negative duration: they count as untimed",
        )
        kernels["flagged"] = np.zeros(len(kernels), dtype=bool)


def _check_copies(part: FileTrace, found: _Collected) -> None:
    """Copies by the device's copy engines are no kernels: nothing here counts them, and a tail may be made of them."""
    if found.copies_us * 1e3 > _COPIES_SHARE * int(part.kernels["dur_ns"].sum()):
        text = f"{found.copies} device copies and fills of {found.copies_us:.1f} us in all"
        part.warn("copies_not_counted", f"{text} are no kernels: no figure here holds them")


def _label(part: FileTrace, stream: EventStream, found: _Collected) -> None:
    rest = _rest(part, stream)
    part.rank = rest.distributed.rank
    process = str(found.pid) if isinstance(found.pid, int) else part.path.name.split(".")[0]
    part.kernels["process"] = constant(process, len(part.kernels))
    if found.calls:
        part.calls = Calls.concatenate(found.calls)
        part.calls["process"] = constant(process, len(part.calls))
        launches(part.kernels, part.calls)
    if found.ranges:
        part.ranges = Ranges.concatenate(found.ranges)
        part.ranges["process"] = constant(process, len(part.ranges))
        part.ranges["source"] = constant(str(part.path), len(part.ranges))
    if rest.other.start_ns is not None and 0 <= rest.other.start_ns < 1 << 61:
        part.format = EXPORT
        _shift(part, rest.other.start_ns)
    if not found.ops:
        return
    ops = Ops.concatenate(found.ops)
    if len(part.kernels):
        attach(part.kernels, np.concatenate(found.external), ops)
    else:
        cpu_kernels(part, ops, process)


def _rest(part: FileTrace, stream: EventStream) -> Rest:
    text = stream.rest.lstrip(b"\xef\xbb\xbf \t\r\n")
    try:
        return msgspec.json.decode(text, type=Rest) if text.startswith(b"{") else Rest()
    except (msgspec.MsgspecError, RecursionError):
        if not stream.cut:
            part.warn(
                "damaged_text",
                "what stands around the event list cannot be read; the rank is not known from it",
            )
        return Rest()


def _shift(part: FileTrace, start_ns: int) -> None:
    """Put the times of an exported table back to where its recording had them."""
    for table in (part.kernels, part.ranges):
        mask = table["timed"] if table is part.kernels else True
        for name in ("start_ns", "end_ns"):
            table[name] = np.where(mask, table[name] + start_ns, table[name])


def _kernels(path: Path, events: list[Event]) -> Kernels:
    args = [e.args or _NO_ARGS for e in events]
    timed = np.array([e.ts is not None and e.dur is not None for e in events], dtype=bool)
    start = _ns(path, [e.ts or 0 for e in events], "ts")
    duration = _ns(path, [e.dur or 0 for e in events], "dur")
    negative = duration < 0
    timed &= ~negative
    queue = encode([a.stream if a.stream is not None else e.tid for a, e in zip(args, events, strict=True)])
    columns = {
        "agent": _said(
            encode([a.device if a.device is not None else e.pid for a, e in zip(args, events, strict=True)]),
            "GPU {}",
        ),
        "queue": _said(queue, "{}"),
        "name": encode([e.name or "(no name)" for e in events]),
        "correlation": ids([a.correlation for a in args], 0),
        "grid": encode([bytes(a.grid) for a in args]).map(_size),
        "workgroup": encode([bytes(a.block) for a in args]).map(_size),
        "start_ns": np.where(timed, start, 0),
        "end_ns": np.where(timed, start + duration, 0),
        "dur_ns": np.where(timed, duration, 0),
        "timed": timed,
        "flagged": negative,
    }
    return Kernels(len(events), columns | {"stream": columns["queue"]})


def _ns(path: Path, values: list, what: str) -> np.ndarray:
    """Microseconds to whole nanoseconds; whole numbers stay exact, however large."""
    if all(isinstance(v, int) and abs(v) < 1 << 52 for v in values):
        return np.array(values, dtype=np.int64) * 1000
    column = np.rint(np.array([float(v) for v in values]) * 1000)
    if not np.isfinite(column).all() or (len(column) and np.abs(column).max() >= 1 << 62):
        raise InputError(f"{path}: a kernel's {what} is no time in microseconds")
    return column.astype(np.int64)


def _placed(event: Event) -> bool:
    """Has this host event a usable time?"""
    return (
        event.ts is not None
        and 0 <= event.ts < 1 << 51
        and (event.dur is None or 0 <= event.dur < 1 << 51)
        and event.name is not None
    )


def _said(column: Coded, form: str) -> Coded:
    """Device and stream numbers as text."""
    return column.map(lambda value: form.format(value))


def _dims(raw: bytes) -> str | None:
    """An op's input sizes as JSON text without blanks; None for an op that recorded none."""
    raw = raw.translate(None, b" \t\r\n")
    return raw.decode("utf-8", "replace") if len(raw) > 2 else None


def _size(raw: bytes) -> str | None:
    """[64, 1, 1] as "64x1x1"."""
    return raw.translate(None, b"[] \t\r\n").decode("utf-8", "replace").replace(",", "x") or None


def _host(events: list[Event]) -> dict:
    start = np.array([round((e.ts or 0) * 1000) for e in events], dtype=np.int64)
    return {
        "thread": ids([e.tid for e in events], -1),
        "start_ns": start,
        "end_ns": start + np.array([round((e.dur or 0) * 1000) for e in events], dtype=np.int64),
    }


def _ranges(events: list[Event]) -> Ranges:
    args = [(e.args or _NO_ARGS) if e.cat == "gpu_user_annotation" else None for e in events]
    agents = [
        None if a is None else e.pid if a.device is None else a.device
        for a, e in zip(args, events, strict=True)
    ]
    streams = [
        None if a is None else e.tid if a.stream is None else a.stream
        for a, e in zip(args, events, strict=True)
    ]
    columns = _host(events) | {
        "name": encode([e.name for e in events]),
        "domain": encode([_RANGES.get(e.cat or "") for e in events]),
        "agent": _said(encode(agents), "GPU {}"),
        "stream": _said(encode(streams), "{}"),
    }
    return Ranges(len(events), columns)


def _calls(events: list[Event]) -> Calls:
    columns = _host(events)
    del columns["end_ns"]
    return Calls(
        len(events), columns | {"correlation": ids([(e.args or _NO_ARGS).correlation for e in events], 0)}
    )


def _ops(events: list[Event]) -> Ops:
    args = [e.args or _NO_ARGS for e in events]
    columns = _host(events) | {
        "external": ids([a.external for a in args], -1),
        "op": encode([e.name for e in events]),
        "dims": encode([bytes(a.dims) for a in args]).map(_dims),
    }
    return Ops(len(events), columns)
