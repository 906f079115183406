"""Damaged and cut JSON: where values end, what can be closed again, and typed records with damage in some of them.

What the kernels' own times do not depend on is read past, with a warning.
"""

import re

import msgspec

from latent_moe.errors import InputError
from latent_moe.lab.traces.file_trace import FileTrace

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


def loosely(part: FileTrace, text: bytes, file: type, dispatch: type):
    """Decode rocprofv3's JSON with each dispatch record by itself. A record that is damaged outside its times keeps
    what can be read. Raises InputError for a damaged time, msgspec's errors for JSON that is none."""
    found = msgspec.json.decode(text, type=_File)
    for entry in found.entries:
        records = entry.buffer_records.kernel_dispatch
        entry.buffer_records.kernel_dispatch = [_dispatch(part, raw, dispatch) for raw in records]
    # The same fields, typed now; both structs have them under the same names.
    return msgspec.convert(found, type=file, from_attributes=True)


def _dispatch(part: FileTrace, raw: msgspec.Raw, dispatch: type):
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


def one(part: FileTrace, raw: msgspec.Raw, kind: type):
    """One record; an empty one, with a warning, where it cannot be read."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except _REFUSED as error:
        part.warn("damaged_record", f"a {kind.__name__.lower()} record cannot be read ({error})")
        return kind()


def several(part: FileTrace, raw: msgspec.Raw, kind: type) -> list:
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


# One string (escapes taken whole), or one bracket. Strings are matched first, so brackets inside them do not count.
_TOKENS = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]]', re.DOTALL)
# A string, or a number word that JSON does not have.
_WORDS = re.compile(rb'("(?:[^"\\]|\\.)*")|[-+]?\b(?:NaN|nan|Infinity|infinity|inf|Inf)\b', re.DOTALL)
# A UTF-16 surrogate escape that has no partner.
_LONELY = re.compile(
    rb"\\\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\\\u[dD][c-fC-F])|(?<!\\\\u[dD][89abAB][0-9a-fA-F]{2})\\\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)
_CONTROLS = bytes.maketrans(bytes(range(32)), b" " * 32)
_CLOSER = {ord("{"): b"}", ord("["): b"]"}


def is_cut(error: Exception) -> bool:
    """Does this decoding error say that the text ended too early?"""
    return "truncated" in str(error)


def cleaned(text: bytes) -> bytes:
    """The same JSON without what parsers refuse: control characters become spaces, invalid UTF-8 becomes U+FFFD,
    bare NaN and infinities become null, lone surrogates U+FFFD. Positions of later bytes can move."""
    text = text.translate(_CONTROLS).decode("utf-8", "replace").encode()
    text = _WORDS.sub(lambda match: match[1] or b"null", text)
    return _LONELY.sub(rb"\\ufffd", text)


def array_end(text: bytes, start: int) -> tuple[list[tuple[int, int]], int]:
    """Walk an array's elements from `start` (just behind its bracket, or between two elements).

    Returns the spans of the whole object elements and the place of the closing bracket, -1 when it never comes.
    """
    depth, begin = 0, start
    spans: list[tuple[int, int]] = []
    for token in _TOKENS.finditer(text, start):
        mark = text[token.start()]
        if mark in b"{[":
            begin = token.start() if depth == 0 else begin
            depth += 1
        elif mark in b"}]":
            if depth == 0:
                return spans, token.start()
            depth -= 1
            if depth == 0:
                spans.append((begin, token.end()))
    return spans, -1


def closed(text: bytes, deepest: int) -> bytes | None:
    """Cut JSON made whole again: kept up to the last complete object in an array that is nested at most `deepest`
    brackets deep, every open bracket closed behind it. None when there is no such object."""
    stack: list[int] = []
    best: tuple[int, list[int]] | None = None
    for token in _TOKENS.finditer(text):
        mark = text[token.start()]
        if mark in b"{[":
            stack.append(mark)
        elif mark in b"}]" and stack:
            stack.pop()
            if mark == ord("}") and stack and stack[-1] == ord("[") and len(stack) <= deepest:
                best = token.end(), list(stack)
    if best is None:
        return None
    end, opened = best
    return text[:end] + b"".join(_CLOSER[mark] for mark in reversed(opened))


def reason(error: Exception, size: int) -> str:
    """One decoding error for a person, with the byte."""
    if is_cut(error):
        return f"truncated JSON, it ends at byte {size} in the middle of a value"
    if isinstance(error, msgspec.ValidationError):
        return f"JSON of an unexpected shape: {error}"
    return f"malformed JSON: {str(error).removeprefix('JSON is malformed: ')}"
