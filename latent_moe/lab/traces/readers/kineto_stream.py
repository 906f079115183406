"""The events of a PyTorch-profiler (Chrome trace) JSON, batch by batch, in bounded memory.

A block of text is cut at the last place where one event follows another, closed with brackets and decoded as a
typed list: as fast as decoding the whole file, and a gigabyte needs no more memory than a block.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from latent_moe.errors import InputError
from latent_moe.lab.traces.readers import lenient_json
from latent_moe.lab.traces.readers.raw_files import blocks

_START = re.compile(rb'"traceEvents"\s*:\s*\[')
_FOLLOWS = re.compile(rb"\}\s*,\s*$")
_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")
_REFUSED = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)
_CANDIDATES = 4
_HEADER_BYTES = 64 << 20
_KERNEL = re.compile(rb'"cat"\s*:\s*"(?:kernel|Kernel)"')


class Args(msgspec.Struct, gc=False):
    device: int | str | None = None
    stream: int | str | None = None
    correlation: int | str | None = None
    external: int | str | None = msgspec.field(name="External id", default=None)
    dims: msgspec.Raw = msgspec.field(name="Input Dims", default=msgspec.Raw(b""))
    group: msgspec.Raw = msgspec.field(name="Process Group Ranks", default=msgspec.Raw(b""))
    elements: int | str | None = msgspec.field(name="In msg nelems", default=None)
    dtype: str | None = None
    grid: msgspec.Raw = msgspec.Raw(b"")
    block: msgspec.Raw = msgspec.Raw(b"")


class Event(msgspec.Struct, gc=False):
    ph: str | None = None
    cat: str | None = None
    name: str | None = None
    pid: int | str | float | None = None
    tid: int | str | float | None = None
    ts: int | float | None = None
    dur: int | float | None = None
    args: Args | None = None


class Bare(msgspec.Struct):
    """What a kernel cannot do without."""

    ph: str | None = None
    cat: str | None = None
    name: str | None = None
    ts: int | float | None = None
    dur: int | float | None = None


_EVENTS = msgspec.json.Decoder(list[Event])
_EVENT = msgspec.json.Decoder(Event)


class Batch(NamedTuple):
    """Some events, and how many others could not be read."""

    events: list[Event]
    unread: int = 0


class EventStream:
    """Iterate over `Batch`es; afterwards `rest` is the file's JSON with an empty event list, `cut` says whether the
    file ended before the list did, `size` counts bytes. Raises InputError: no event list, or a kernel's damage."""

    def __init__(self, path: Path, block_bytes: int = 4 << 20, salvage: bool = False):
        self.path, self.block_bytes, self.salvage = path, block_bytes, salvage
        self.rest, self.cut, self.size, self.cleaned = b"", False, 0, False

    def __iter__(self) -> Iterator[Batch]:
        text, inside, ended = b"", False, False
        for block in self._blocks():
            text += block
            if not inside and (start := self._start(text)):
                inside, self.rest, text = True, text[:start], text[start:]
            if not inside and len(text) > _HEADER_BYTES:
                raise InputError(
                    f"{self.path}: no traceEvents in the first {_HEADER_BYTES >> 20} MiB of this JSON"
                )
            if ended or not inside:
                continue
            batch, text, ended = self._some(text)
            yield batch
        if not inside:
            raise InputError(f"{self.path}: {self._no_list(text)}")
        if not ended:
            batch, text, ended = self._last(text)
            yield batch
        self.cut = not ended
        self.rest += b"]" + text

    def _blocks(self) -> Iterator[bytes]:
        waiting, length = [], 0
        for block in blocks(self.path, self.block_bytes, self.salvage):
            self.size += len(block)
            waiting.append(block)
            length += len(block)
            if length >= self.block_bytes:
                yield b"".join(waiting)
                waiting, length = [], 0
        if waiting:
            yield b"".join(waiting)

    def _start(self, text: bytes) -> int:
        bare = text[:64].lstrip(b"\xef\xbb\xbf \t\r\n")
        if bare.startswith(b"["):
            return text.index(b"[") + 1
        match = _START.search(text)
        return match.end() if match else 0

    def _no_list(self, text: bytes) -> str:
        try:
            msgspec.json.decode(text)
        except _REFUSED as error:
            return lenient_json.reason(error, self.size)
        return "JSON without traceEvents: not a PyTorch-profiler trace"

    def _some(self, text: bytes) -> tuple[Batch, bytes, bool]:
        """Decode up to the last event that another one follows: (batch, text not used yet, did the list end)."""
        place = len(text)
        for _ in range(_CANDIDATES):
            place = text.rfind(b"{", 0, place)
            while place > 0 and not _FOLLOWS.search(text, max(0, place - 64), place):
                place = text.rfind(b"{", 0, place)
            if place <= 0:
                return Batch([]), text, False
            comma = text.rindex(b",", 0, place)
            try:
                return Batch(_EVENTS.decode(b"[" + text[:comma] + b"]")), text[place:], False
            except _REFUSED as error:
                if ended := self._ended(text, error):
                    return ended
        return self._carefully(text)

    def _last(self, text: bytes) -> tuple[Batch, bytes, bool]:
        try:
            return Batch(_EVENTS.decode(b"[" + text)), b"", True
        except _REFUSED as error:
            return self._ended(text, error) or self._carefully(text)

    def _ended(self, text: bytes, error: Exception) -> tuple[Batch, bytes, bool] | None:
        """Where the decoder met characters behind the list's closing bracket, the list ends there."""
        match = _TRAILING.search(str(error))
        end = text.rfind(b"]", 0, int(match[1])) if match else -1
        if end < 0:
            return None
        try:
            return Batch(_EVENTS.decode(b"[" + text[:end] + b"]")), text[end + 1 :], True
        except _REFUSED:
            return None

    def _carefully(self, text: bytes) -> tuple[Batch, bytes, bool]:
        """Event by event, past those that cannot be read."""
        spans, end = lenient_json.array_end(text, 0)
        events, unread = [], 0
        for begin, stop in spans:
            event = self._event(text[begin:stop])
            events += [event] if event else []
            unread += event is None
        behind = end + 1 if end >= 0 else spans[-1][1] if spans else 0
        return Batch(events, unread), text[behind:].lstrip(b", \t\r\n"), end >= 0

    def _event(self, text: bytes) -> Event | None:
        try:
            return _EVENT.decode(text)
        except _REFUSED:
            self.cleaned = True
        text = lenient_json.cleaned(text)
        try:
            return _EVENT.decode(text)
        except _REFUSED:
            return self._kernel_times(text) if _KERNEL.search(text) else None

    def _kernel_times(self, text: bytes) -> Event | None:
        """A kernel whose record is damaged outside its name and times; an error when they are damaged too."""
        try:
            bare = msgspec.json.decode(text, type=Bare)
            return Event(bare.ph, bare.cat, bare.name, None, None, bare.ts, bare.dur)
        except _REFUSED as error:
            if not self.salvage:
                raise InputError(f"{self.path}: a kernel's record cannot be read: {error}") from None
            return None


__all__ = ["Args", "Batch", "Event", "EventStream"]
