"""Typed JSON records with damage in some of them: what the kernels' own times do not depend on is read past."""

import msgspec

from latent_moe.errors import InputError
from latent_moe.lab.traces.file_trace import Part

_REFUSED = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)


class _Times(msgspec.Struct):
    start_timestamp: int
    end_timestamp: int
    dispatch_info: msgspec.Raw = msgspec.Raw(b"{}")


class _Buffers(msgspec.Struct):
    kernel_dispatch: list[msgspec.Raw] = []
    hip_api: msgspec.Raw = msgspec.Raw(b"[]")
    marker_api: msgspec.Raw = msgspec.Raw(b"[]")


class _Entry(msgspec.Struct):
    buffer_records: _Buffers = msgspec.field(default_factory=_Buffers)
    metadata: msgspec.Raw = msgspec.Raw(b"{}")
    kernel_symbols: msgspec.Raw = msgspec.Raw(b"[]")
    agents: msgspec.Raw = msgspec.Raw(b"[]")
    strings: msgspec.Raw = msgspec.Raw(b"{}")


class _File(msgspec.Struct):
    entries: list[_Entry] = msgspec.field(name="rocprofiler-sdk-tool")


def loosely(part: Part, text: bytes, file: type, dispatch: type):
    """Decode rocprofv3's JSON with each dispatch record by itself. A record that is damaged outside its times keeps
    what can be read. Raises InputError for a damaged time, msgspec's errors for JSON that is none."""
    found = msgspec.json.decode(text, type=_File)
    for entry in found.entries:
        records = entry.buffer_records.kernel_dispatch
        entry.buffer_records.kernel_dispatch = [_dispatch(part, raw, dispatch) for raw in records]
    # The same fields, typed now; both structs have them under the same names.
    return msgspec.convert(found, type=file, from_attributes=True)


def _dispatch(part: Part, raw: msgspec.Raw, dispatch: type):
    try:
        return msgspec.json.decode(raw, type=dispatch)
    except _REFUSED:
        pass
    try:
        times = msgspec.json.decode(raw, type=_Times)
    except _REFUSED as error:
        raise InputError(f"{part.path}: a kernel's record cannot be read: {error}") from None
    info = one(part, times.dispatch_info, dispatch.__annotations__["dispatch_info"])
    return dispatch(info, times.start_timestamp, times.end_timestamp)


def one(part: Part, raw: msgspec.Raw, kind: type):
    """One record; an empty one, with a warning, where it cannot be read."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except _REFUSED as error:
        part.warn("damaged_record", f"a {kind.__name__.lower()} record cannot be read ({error})")
        return kind()


def several(part: Part, raw: msgspec.Raw, kind: type) -> list:
    """A list of records without those that cannot be read, and a warning for them."""
    try:
        return msgspec.json.decode(raw, type=list[kind])  # type: ignore[valid-type]
    except _REFUSED:
        pass
    try:
        items = msgspec.json.decode(raw, type=list[msgspec.Raw])
    except _REFUSED:
        items = []
    found = [record for item in items if (record := _or_none(item, kind)) is not None]
    part.warn(
        "damaged_record", f"{len(items) - len(found) or 'all'} {kind.__name__.lower()} records cannot be read"
    )
    return found


def _or_none(raw: msgspec.Raw, kind: type):
    try:
        return msgspec.json.decode(raw, type=kind)
    except _REFUSED:
        return None
