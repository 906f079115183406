"""Reader for rocprofv3's pftrace (Perfetto protobuf), through the `perfetto` package's message classes.

Kernels are slices of category kernel_dispatch on tracks "COMPUTE AGENT [a] QUEUE [q]"; their debug annotations repeat
begin and end in nanoseconds. Perfetto's own trace processor is not used: it downloads a program.
"""

from collections.abc import Iterator
from pathlib import Path

from latent_moe.errors import InputError
from latent_moe.lab.traces.file_trace import Calls, FileTrace, backwards, ids, launches, spans, times
from latent_moe.lab.traces.readers.raw_files import content
from latent_moe.lab.traces.table import Kernels, Ranges, constant, encode, number_texts

FORMAT = "Perfetto trace"
_KERNEL, _MARKER, _API = "kernel_dispatch", "marker_api", "hip_api"
_BEGIN, _END = 1, 2
_PACKET = b"\n"


class _Sequence:
    """The interned strings of one packet sequence."""

    def __init__(self):
        self.categories, self.names, self.annotations = {}, {}, {}

    def learn(self, data) -> None:
        self.categories |= {entry.iid: text_of(entry.name) for entry in data.event_categories}
        self.names |= {entry.iid: text_of(entry.name) for entry in data.event_names}
        self.annotations |= {entry.iid: text_of(entry.name) for entry in data.debug_annotation_names}


def text_of(value: str | bytes) -> str:
    """A protobuf's text; protobuf hands over bytes where they are not UTF-8."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def looks_like(start: bytes) -> bool:
    """Do these bytes start as a trace of packets does: field 1, a length, and behind it the next packet?"""
    if start[:1] != _PACKET or len(start) < 2:
        return False
    try:
        body, size = _varint(start, 1)
    except IndexError:
        return False
    behind = start[body + size : body + size + 1]
    return behind == _PACKET or (
        not behind and size > 0 and not start.lstrip().startswith((b"{", b"[", b'"'))
    )


def read(path: Path, salvage: bool = False) -> FileTrace:
    """Read one file. Raises InputError: cut or damaged, with the byte."""
    part = FileTrace(path, FORMAT, Kernels(0))
    slices, process = _slices(part, content(path, salvage), salvage)
    part.kernels = _kernels(part, [s for s in slices if s["category"] == _KERNEL], process)
    launches(part.kernels, _calls([s for s in slices if s["category"] == _API], process))
    part.ranges = _ranges(part, [s for s in slices if s["category"] == _MARKER], process)
    return part


def packets(part: FileTrace, data: bytes, salvage: bool) -> Iterator:
    """The trace's packets. Raises InputError where one is damaged; with `salvage` they end there, `part` marked."""
    from google.protobuf.message import DecodeError
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TracePacket

    place = 0
    while place < len(data):
        try:
            body, size = _varint(data, place + 1)
            if data[place] != 0x0A or body + size > len(data):
                raise DecodeError("no whole packet")
            packet = TracePacket.FromString(data[body : body + size])
        except (DecodeError, IndexError, UnicodeDecodeError, ValueError) as error:
            if not salvage:
                raise InputError(
                    f"{part.path}: damaged or truncated Perfetto trace at byte {place} ({error})"
                ) from None
            part.partial = True
            part.warn("partial", f"damaged at byte {place}: only the packets before it were read")
            return
        yield packet
        place = body + size


def _varint(data: bytes, place: int) -> tuple[int, int]:
    """(place behind it, value) of a protobuf number."""
    value = shift = 0
    while True:
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80 or shift > 63:
            return place, value


def _slices(part: FileTrace, data: bytes, salvage: bool) -> tuple[list[dict], str | None]:
    sequences: dict[int, _Sequence] = {}
    slices: list[dict] = []
    process = ""
    open_slices: dict[int, list[dict]] = {}
    for packet in packets(part, data, salvage):
        key = packet.trusted_packet_sequence_id
        # Bit 1 of the flags: the sequence forgets what it interned.
        if packet.sequence_flags & 1 or key not in sequences:
            sequences[key] = _Sequence()
        if packet.HasField("interned_data"):
            sequences[key].learn(packet.interned_data)
        if packet.HasField("track_descriptor") and packet.track_descriptor.HasField("process"):
            process = process or str(packet.track_descriptor.process.pid)
        if packet.HasField("track_event"):
            _event(packet, sequences[key], open_slices.setdefault(packet.track_event.track_uuid, []), slices)
    return slices, process or None


def _event(packet, known: _Sequence, stack: list[dict], slices: list[dict]) -> None:
    event = packet.track_event
    if event.type == _END and stack:
        stack.pop().setdefault("end_ns", packet.timestamp)
    if event.type != _BEGIN:
        return
    category = next((known.categories.get(iid) for iid in event.category_iids), None) or next(
        map(text_of, event.categories), None
    )
    found = {
        "category": category,
        "name": text_of(event.name) or known.names.get(event.name_iid),
        "begin_ns": packet.timestamp,
    }
    for note in event.debug_annotations:
        value = text_of(note.string_value) or note.uint_value or note.int_value
        name = note.name or known.annotations.get(note.name_iid)
        if name:
            found[name] = value
    stack.append(found)
    slices.append(found)


def _numbers(slices: list[dict], name: str, absent: int):
    return ids([s.get(name, absent) for s in slices], absent)


def _agent(value: int | str | None) -> str | None:
    """ "Agent 4" from 4 and from ROCm 7's "Agent-4"."""
    if isinstance(value, str):
        return value.replace("Agent-", "Agent ")
    return None if value is None else f"Agent {value}"


def _kernels(part: FileTrace, slices: list[dict], process: str | None) -> Kernels:
    start = times([s.get("begin_ns", 0) for s in slices], part.path, "begin_ns")
    end = times([s.get("end_ns", 0) for s in slices], part.path, "end_ns")
    backwards(part, start, end)
    columns = {
        "process": constant(process, len(slices)),
        "agent": encode(_agent(s.get("agent")) for s in slices),
        "queue": number_texts(_numbers(slices, "queue", -1)),
        "stream": number_texts(_numbers(slices, "stream_ID", -1)),
        "name": encode(s["name"] or "(no name)" for s in slices),
        "thread": _numbers(slices, "tid", -1),
        "correlation": _numbers(slices, "corr_id", 0),
        "grid": number_texts(_numbers(slices, "grid_size", -1)),
        "workgroup": number_texts(_numbers(slices, "workgroup_size", -1)),
    }
    return Kernels(len(slices), columns | spans(start, end))


def _calls(slices: list[dict], process: str | None) -> Calls:
    columns = {
        "process": constant(process, len(slices)),
        "thread": _numbers(slices, "tid", -1),
        "start_ns": _numbers(slices, "begin_ns", -1),
        "correlation": _numbers(slices, "corr_id", 0),
    }
    return Calls(len(slices), columns)


def _ranges(part: FileTrace, slices: list[dict], process: str | None) -> Ranges:
    n = len(slices)
    columns = {
        "process": constant(process, n),
        "thread": _numbers(slices, "tid", -1),
        "name": encode(s["name"] for s in slices),
        "start_ns": _numbers(slices, "begin_ns", 0),
        "end_ns": _numbers(slices, "end_ns", 0),
        "correlation": _numbers(slices, "corr_id", 0),
        "domain": constant("host", n),
        "source": constant(str(part.path), n),
    }
    ranges = Ranges(n, columns)
    return ranges.take(ranges["end_ns"] > ranges["start_ns"])
