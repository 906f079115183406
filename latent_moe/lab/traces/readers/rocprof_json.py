"""Reader for rocprofv3's JSON (ROCm 6.2 to 7.x): {"rocprofiler-sdk-tool": [one entry per process]}.

Each entry has agents, kernel_symbols and buffer_records.kernel_dispatch; marker texts stand apart, in
strings.marker_api, by correlation id. Source of the layout: rocprofiler-sdk's "Using rocprofv3", section JSON.
"""

from pathlib import Path

import msgspec

from latent_moe.errors import InputError
from latent_moe.lab.traces.file_trace import Calls, FileTrace, backwards, ids, launches, spans, times
from latent_moe.lab.traces.readers import lenient_json
from latent_moe.lab.traces.readers.lenient_json import loosely, one, several
from latent_moe.lab.traces.readers.raw_files import content
from latent_moe.lab.traces.table import Kernels, Ranges, constant, encode, from_keys, number_texts, sizes

FORMAT = "rocprofv3 JSON"
# Brackets around an element of kernel_dispatch: root { tool [ entry { buffer_records { kernel_dispatch [
_DEPTH = 5
_REFUSED = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)


class Handle(msgspec.Struct, gc=False, frozen=True):
    handle: int = -1


class Correlation(msgspec.Struct, gc=False, frozen=True):
    internal: int = 0
    ancestor: int = 0


class Size(msgspec.Struct, gc=False, frozen=True):
    x: int = 0
    y: int = 0
    z: int = 0


class Info(msgspec.Struct, gc=False, frozen=True):
    agent_id: Handle = Handle()
    queue_id: Handle = Handle()
    kernel_id: int = -1
    workgroup_size: Size = Size()
    grid_size: Size = Size()


class Dispatch(msgspec.Struct, gc=False, frozen=True):
    dispatch_info: Info
    start_timestamp: int = 0
    end_timestamp: int = 0
    thread_id: int = -1
    correlation_id: Correlation = Correlation()
    stream_id: Handle = Handle()


class Call(msgspec.Struct, gc=False, frozen=True):
    start_timestamp: int = 0
    end_timestamp: int = 0
    thread_id: int = -1
    correlation_id: Correlation = Correlation()


class Symbol(msgspec.Struct, gc=False, frozen=True):
    kernel_id: int = -1
    formatted_kernel_name: str | None = None
    demangled_kernel_name: str | None = None
    kernel_name: str | None = None


class Agent(msgspec.Struct, gc=False, frozen=True):
    id: Handle = Handle()
    node_id: int = -1
    product_name: str | None = None
    model_name: str | None = None
    name: str | None = None


class Text(msgspec.Struct, gc=False, frozen=True):
    key: int = -1
    value: str | None = None


class Buffers(msgspec.Struct):
    kernel_dispatch: list[Dispatch] = []
    hip_api: msgspec.Raw = msgspec.Raw(b"[]")
    marker_api: msgspec.Raw = msgspec.Raw(b"[]")


class Strings(msgspec.Struct):
    marker_api: msgspec.Raw = msgspec.Raw(b"[]")


class Node(msgspec.Struct):
    hostname: str | None = None


class Metadata(msgspec.Struct):
    pid: int = -1
    node: Node = msgspec.field(default_factory=Node)


class Entry(msgspec.Struct):
    buffer_records: Buffers = msgspec.field(default_factory=Buffers)
    metadata: msgspec.Raw = msgspec.Raw(b"{}")
    kernel_symbols: msgspec.Raw = msgspec.Raw(b"[]")
    agents: msgspec.Raw = msgspec.Raw(b"[]")
    strings: msgspec.Raw = msgspec.Raw(b"{}")


class File(msgspec.Struct):
    entries: list[Entry] = msgspec.field(name="rocprofiler-sdk-tool")


def read(path: Path, salvage: bool = False) -> FileTrace:
    """Read one file. Raises InputError: cut, malformed or of another shape, with the byte where it is known."""
    part = FileTrace(path, FORMAT, Kernels(0))
    entries = _decode(part, content(path, salvage), salvage).entries
    tables = [_entry(part, entry) for entry in entries]
    if tables:
        part.kernels = Kernels.concatenate([kernels for kernels, _ in tables])
        part.ranges = Ranges.concatenate([ranges for _, ranges in tables])
    return part


def _decode(part: FileTrace, text: bytes, salvage: bool) -> File:
    try:
        return msgspec.json.decode(text, type=File)
    except _REFUSED as error:
        first = error
    whole = text if isinstance(first, msgspec.ValidationError) else lenient_json.cleaned(text)
    try:
        file = loosely(part, whole, File, Dispatch)
    except _REFUSED as error:
        if not salvage:
            raise InputError(f"{part.path}: {lenient_json.reason(error, len(text))}") from None
        return _salvaged(part, whole, len(text))
    part.warn(
        "damaged_text",
        f"read past damage outside the kernels' times ({lenient_json.reason(first, len(text))})",
    )
    return file


def _salvaged(part: FileTrace, text: bytes, size: int) -> File:
    whole = lenient_json.closed(text, _DEPTH)
    try:
        file = loosely(part, whole or b"", File, Dispatch)
    except _REFUSED as error:
        raise InputError(f"{part.path}: nothing to salvage: {lenient_json.reason(error, size)}") from None
    part.partial = True
    part.warn("partial", f"truncated at byte {size}: only the records before it were read")
    return file


def _entry(part: FileTrace, entry: Entry) -> tuple[Kernels, Ranges]:
    metadata = one(part, entry.metadata, Metadata)
    kernels, ranges = _kernels(part, entry), _ranges(part, entry)
    launches(kernels, _calls(part, entry))
    for table in (kernels, ranges):
        table["host"] = constant(metadata.node.hostname, len(table))
        table["process"] = constant(str(metadata.pid) if metadata.pid >= 0 else None, len(table))
    return kernels, ranges


def _kernels(part: FileTrace, entry: Entry) -> Kernels:
    records = entry.buffer_records.kernel_dispatch
    infos = [record.dispatch_info for record in records]
    start = times([r.start_timestamp for r in records], part.path, "start_timestamp")
    end = times([r.end_timestamp for r in records], part.path, "end_timestamp")
    backwards(part, start, end)
    agents = {agent.id.handle: agent for agent in several(part, entry.agents, Agent)}
    nodes = {handle: f"Agent {agent.node_id}" for handle, agent in agents.items()}
    used = (agents.get(handle) for handle in {info.agent_id.handle for info in infos})
    names_of = {agent.product_name or agent.model_name or agent.name for agent in used if agent}
    part.device = ", ".join(sorted(filter(None, names_of))) or part.device
    names = {s.kernel_id: _name(s) for s in several(part, entry.kernel_symbols, Symbol)}
    columns = {
        "agent": from_keys(ids([i.agent_id.handle for i in infos], -1), nodes, "agent {}"),
        "queue": number_texts(ids([i.queue_id.handle for i in infos], -1)),
        "stream": number_texts(ids([r.stream_id.handle for r in records], -1)),
        "name": from_keys(ids([i.kernel_id for i in infos], -1), names, "kernel {}"),
        "thread": ids([r.thread_id for r in records], -1),
        "correlation": ids([r.correlation_id.internal for r in records], 0),
        "parent": ids([r.correlation_id.ancestor for r in records], 0),
        "grid": _sizes([i.grid_size for i in infos]),
        "workgroup": _sizes([i.workgroup_size for i in infos]),
    }
    return Kernels(len(records), columns | spans(start, end))


def _name(symbol: Symbol) -> str:
    known = symbol.formatted_kernel_name or symbol.demangled_kernel_name or symbol.kernel_name
    return known or f"kernel {symbol.kernel_id}"


def _sizes(values: list[Size]):
    return sizes(*(ids([getattr(v, axis) for v in values], 0) for axis in "xyz"))


def _calls(part: FileTrace, entry: Entry) -> Calls:
    calls = several(part, entry.buffer_records.hip_api, Call)
    columns = {
        "thread": ids([c.thread_id for c in calls], -1),
        "start_ns": ids([c.start_timestamp for c in calls], -1),
        "correlation": ids([c.correlation_id.internal for c in calls], 0),
    }
    return Calls(len(calls), columns)


def _ranges(part: FileTrace, entry: Entry) -> Ranges:
    texts = {
        text.key: text.value for text in several(part, one(part, entry.strings, Strings).marker_api, Text)
    }
    marks = several(part, entry.buffer_records.marker_api, Call)
    marks = [m for m in marks if texts.get(m.correlation_id.internal) and m.end_timestamp > m.start_timestamp]
    n = len(marks)
    columns = {
        "thread": ids([m.thread_id for m in marks], -1),
        "name": encode(texts[m.correlation_id.internal] for m in marks),
        "start_ns": ids([m.start_timestamp for m in marks], 0),
        "end_ns": ids([m.end_timestamp for m in marks], 0),
        "correlation": ids([m.correlation_id.internal for m in marks], 0),
        "domain": constant("host", n),
    }
    return Ranges(n, columns | {"source": constant(str(part.path), n)}) if n else Ranges(0)


__all__ = ["FORMAT", "read"]
