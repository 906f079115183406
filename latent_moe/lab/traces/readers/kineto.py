"""Reader for the PyTorch profiler's JSON (Chrome trace events), of ROCm and CUDA builds, graph replay included.

Kernels are the events of category "kernel"; their `ts` and `dur` are microseconds with three decimals. Ranges are
user_annotation (host) and gpu_user_annotation (device). A kernel finds its launch through `correlation`, and the
PyTorch op around it, with that op's input sizes, through "External id" or the launch's time.
"""

import re
from pathlib import Path

import msgspec
import numpy as np

from latent_moe.errors import InputError
from latent_moe.lab.traces.file_trace import Calls, FileTrace, ids, launches, shared_codes
from latent_moe.lab.traces.readers.kineto_ops import attach, cpu_kernels
from latent_moe.lab.traces.readers.kineto_stream import Args, Event, EventStream
from latent_moe.lab.traces.table import Coded, Columns, Kernels, Ranges, constant, encode

FORMAT, EXPORT = "PyTorch profiler JSON", "exported table"
_NO_ARGS = Args()
_MERGED = re.compile(r"(\[[^\]]+\])\s*(.*)$")
# ROCm 5's profiler writes the barriers of a queue among its kernels.
_BARRIERS = {"Marker", "BarrierAnd", "BarrierOr", "BarrierValue"}
_PHASE = re.compile(rb'"ph"\s*:\s*"X"')
_KERNEL = re.compile(rb'"cat"\s*:\s*"[Kk]ernel"')
# A first time stamp of 0 is none where all others lie further off than so many times their own spread.
_FAR_TIMES = 10
_DTYPE_BYTES = {
    **dict.fromkeys(("float", "float32", "int", "int32"), 4),
    **dict.fromkeys(("half", "float16", "bfloat16", "int16", "short"), 2),
    **dict.fromkeys(("char", "byte", "int8", "uint8", "float8_e4m3fn", "float8_e4m3fnuz", "bool"), 1),
    **dict.fromkeys(("double", "float64", "long", "int64"), 8),
}
_RANGES = {"user_annotation": "host", "gpu_user_annotation": "device"}
_COPIES = {"gpu_memcpy", "gpu_memset"}
# Copies of less than this share of the kernels' time are not worth a word.
_COPIES_SHARE = 0.05
_CALLS = {"cuda_runtime", "cuda_driver", "hip_runtime", "runtime", "driver"}
# Beyond this a double no longer holds a nanosecond in microseconds.
_EXACT_US = (1 << 53) / 1000


class Ops(Columns):
    """PyTorch ops (cpu_op); `dims` is absent where the profiler recorded no input sizes."""

    fields = ("host", "thread", "start_ns", "end_ns", "external", "op", "dims")


class Distributed(msgspec.Struct):
    rank: int = -1
    world_size: int = -1


class DeviceProperties(msgspec.Struct):
    name: str | None = None


class Other(msgspec.Struct):
    # Our own export begins at 0 and says here where it began; PyTorch's files have no such field.
    start_ns: int | None = None


class Rest(msgspec.Struct):
    distributed: Distributed = msgspec.field(name="distributedInfo", default_factory=Distributed)
    other: Other = msgspec.field(name="otherData", default_factory=Other)
    base_ns: int | None = msgspec.field(name="baseTimeNanoseconds", default=None)
    hostname: str | None = None
    host_name: str | None = None
    devices: list[DeviceProperties] = msgspec.field(name="deviceProperties", default_factory=list)


class _Collected:
    """Tables of one batch after the other, joined at the end."""

    def __init__(self):
        self.kernels, self.external, self.ranges, self.calls, self.ops = [], [], [], [], []
        self.unread = self.launches = 0
        self.pids: dict[str | None, str] = {}
        self.copies, self.copies_us = 0, 0.0

    def add(self, path: Path, batch) -> None:
        self.unread += batch.unread
        spans = [e for e in batch.events if e.ph == "X" or e.ph is None]
        kernels = [e for e in spans if e.cat in ("kernel", "Kernel") and e.name not in _BARRIERS]
        ranges = [e for e in spans if e.cat in _RANGES and _placed(e)]
        calls = [e for e in spans if e.cat in _CALLS and _placed(e)]
        ops = [e for e in spans if e.cat == "cpu_op" and _placed(e)]
        self.launches += sum("Launch" in e.name for e in calls if e.name)
        copies = [e.dur for e in spans if e.cat in _COPIES and e.dur]
        self.copies, self.copies_us = self.copies + len(copies), self.copies_us + sum(copies)
        for events in (ranges, calls, ops):
            self._learn_pids(events)
        self.external.append(ids([(e.args or _NO_ARGS).external for e in kernels], -1))
        self.kernels += [_kernels(path, kernels)]
        self.ranges += [_ranges(ranges)] if ranges else []
        self.calls += [_calls(calls)] if calls else []
        self.ops += [_ops(ops)] if ops else []

    def _learn_pids(self, events: list[Event]) -> None:
        """The process of each part of a merged trace, or of the one process of the file."""
        for event in events if events and isinstance(events[0].pid, str) else events[:1]:
            part, pid = _split_pid(event.pid)
            if pid.isdigit():
                self.pids.setdefault(part, pid)


def _split_pid(pid: int | str | float | None) -> tuple[str | None, str]:
    """("[TP00]", "4000") of a merged trace's "[TP00] 4000"; (None, "4000") of a plain process id."""
    match = _MERGED.match(pid) if isinstance(pid, str) else None
    return (match[1], match[2]) if match else (None, str(pid))


def read(path: Path, salvage: bool = False) -> FileTrace:
    """Read one file, in memory that does not grow with it beyond the kernels, launches and sized ops themselves.

    Raises InputError: cut (with the byte), malformed, no event list, or a kernel whose own times are damaged.
    """
    stream, found = EventStream(path, salvage=salvage), _Collected()
    for batch in stream:
        found.add(path, batch)
    part = FileTrace(path, FORMAT, Kernels.concatenate(found.kernels or [Kernels(0)]))
    _check_end(part, stream, salvage)
    _check_lost(part, stream, found, salvage)
    _check_damage(part, stream, found)
    _check_copies(part, found)
    _label(part, stream, found)
    return part


def _check_lost(part: FileTrace, stream: EventStream, found: _Collected, salvage: bool) -> None:
    """Launches whose kernels were not recorded; events that another writer left behind the event list.

    Raises InputError for both; with `salvage` what stands in the list is read and marked partial.
    """
    if found.launches and not len(part.kernels):
        raise InputError(f"{part.path}: {found.launches} launches but no kernels: GPU records were lost")
    behind = len(_PHASE.findall(stream.rest))
    if stream.cut or not behind:
        return
    text = (
        f"{behind} events ({len(_KERNEL.findall(stream.rest))} of them kernels) stand behind the event list of "
        f"{len(part.kernels)} kernels: two processes wrote into one file"
    )
    if not salvage:
        raise InputError(f"{part.path}: {text}")
    part.partial = True
    part.warn("partial", f"{text}; only the list was read")


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
    part.rank, part.world_size = rest.distributed.rank, rest.distributed.world_size
    part.base_ns = rest.base_ns if rest.base_ns and 0 < rest.base_ns < 1 << 61 else None
    part.device = next((device.name for device in rest.devices if device.name), None)
    if found.calls:
        part.calls = Calls.concatenate(found.calls)
    if found.ranges:
        part.ranges = Ranges.concatenate(found.ranges)
        part.ranges["source"] = constant(str(part.path), len(part.ranges))
    ops = Ops.concatenate(found.ops) if found.ops else Ops(0)
    lone_ops = len(ops) and not len(part.kernels)
    if lone_ops:
        cpu_kernels(part, ops)
    for table in (part.kernels, part.calls, part.ranges):
        _name_process(table, found.pids, rest.hostname or rest.host_name)
    if found.calls:
        launches(part.kernels, part.calls)
    if rest.other.start_ns is None:
        _untime_zeros(part.kernels)
    if rest.other.start_ns is not None and 0 <= rest.other.start_ns < 1 << 61:
        part.format = EXPORT
        part.shift(rest.other.start_ns)
    if len(ops) and not lone_ops:
        mine, theirs = shared_codes(part.kernels["host"], ops["host"])
        ops["external"] = _per_part(ops["external"], theirs)
        attach(part.kernels, _per_part(np.concatenate(found.external), mine), ops)


def _untime_zeros(kernels: Kernels) -> None:
    """A time stamp of 0 among stamps far away is a kernel without a time."""
    start, timed = np.asarray(kernels["start_ns"]), np.asarray(kernels["timed"])
    zero, others = timed & (start == 0), start[timed & (start > 0)]
    if not zero.any() or not len(others) or others.min() <= _FAR_TIMES * (others.max() - others.min() + 1):
        return
    kernels["timed"] = timed & ~zero
    for name in ("start_ns", "end_ns", "dur_ns"):
        kernels[name] = np.where(zero, 0, kernels[name])


def _name_process(table: Kernels | Calls | Ranges, pids: dict[str | None, str], hostname: str | None) -> None:
    """The process that each part of the file told; the host that the file names, where it is of one process."""
    host = table["host"]
    if host.values:
        table["process"] = host.map([pids.get(part) for part in host.values])
        return
    table["process"] = constant(pids.get(None), len(table))
    table["host"] = constant(hostname, len(table))


def _per_part(external: np.ndarray, part: np.ndarray) -> np.ndarray:
    """External ids count within one part of a merged trace; they stay below 2**40."""
    return np.where(external >= 0, external + (np.maximum(part, 0).astype(np.int64) << 40), external)


def _parts(events: list[Event]) -> dict[str, Coded]:
    """{"host": the parts of a merged trace} for events whose process is written as text; else nothing."""
    if not events or not isinstance(events[0].pid, str):
        return {}
    return {"host": encode([_split_pid(event.pid)[0] for event in events])}


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
            encode(
                [
                    a.device if a.device is not None else _split_pid(e.pid)[1]
                    for a, e in zip(args, events, strict=True)
                ]
            ),
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
    return Kernels(len(events), columns | {"stream": columns["queue"]} | _parts(events) | _messages(args))


def _messages(args: list[Args]) -> dict:
    """Process group and message size of the collectives, where the profiler recorded them."""
    found: dict = {}
    if any(bytes(a.group) for a in args):
        found["group"] = encode([bytes(a.group).decode("utf-8", "replace").strip('"') or None for a in args])
    if any(a.elements is not None for a in args):
        found["message_bytes"] = ids([_message_bytes(a) for a in args], -1)
    return found


def _message_bytes(args: Args) -> int:
    width = _DTYPE_BYTES.get((args.dtype or "").lower())
    return args.elements * width if width and isinstance(args.elements, int) and args.elements >= 0 else -1


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
    return _parts(events) | {
        "thread": ids([e.tid for e in events], -1),
        "start_ns": start,
        "end_ns": start + np.array([round((e.dur or 0) * 1000) for e in events], dtype=np.int64),
    }


def _ranges(events: list[Event]) -> Ranges:
    args = [(e.args or _NO_ARGS) if e.cat == "gpu_user_annotation" else None for e in events]
    agents = [
        None if a is None else _split_pid(e.pid)[1] if a.device is None else a.device
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
