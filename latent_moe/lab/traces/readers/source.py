"""Bytes of a trace file, packed or not, and the faults of files as such."""

import zlib
from collections.abc import Iterator
from pathlib import Path

from latent_moe.errors import InputError

GZIP = b"\x1f\x8b"
SQLITE = b"SQLite format 3\x00"


def head(path: Path, size: int = 65536) -> bytes:
    """The first bytes, unpacked when the file is gzip. Raises InputError: unreadable, empty, not gzip after all."""
    try:
        with path.open("rb") as file:
            start = file.read(size)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    if not start:
        raise InputError(f"{path}: empty file")
    if not start.startswith(GZIP):
        return start
    try:
        unpacked = zlib.decompressobj(wbits=31).decompress(start, size)
    except zlib.error as error:
        raise InputError(f"{path}: damaged gzip ({error})") from None
    if not unpacked:
        raise InputError(f"{path}: empty file inside gzip")
    return unpacked


def is_packed(path: Path) -> bool:
    """Does the file start as gzip does?"""
    with path.open("rb") as file:
        return file.read(2) == GZIP


def blocks(path: Path, size: int, salvage: bool = False) -> Iterator[bytes]:
    """The unpacked content, block by block. A cut gzip raises InputError, or just ends with `salvage`."""
    if not is_packed(path):
        with path.open("rb") as file:
            while block := file.read(size):
                yield block
        return
    yield from _unpacked(path, size, salvage)


def _unpacked(path: Path, size: int, salvage: bool) -> Iterator[bytes]:
    count, stream, whole = 0, zlib.decompressobj(wbits=31), False
    try:
        for packed in _packed(path):
            while packed:
                # gzip files may follow each other in one file; what is no gzip behind the last one is padding
                if stream.eof:
                    whole, stream = True, zlib.decompressobj(wbits=31)
                    packed = packed if packed.startswith(GZIP) else b""
                block = stream.decompress(packed, size)
                count += len(block)
                if block:
                    yield block
                packed = stream.unconsumed_tail or stream.unused_data
        if stream.eof or whole:
            return
        fault = "cut"
    except zlib.error as error:
        fault = str(error)
    if not salvage:
        raise InputError(f"{path}: damaged gzip, it ends after byte {count} of its content ({fault})")


def _packed(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while block := file.read(1 << 18):
            yield block


def content(path: Path, salvage: bool = False) -> bytes:
    """The whole unpacked content."""
    if not is_packed(path):
        return path.read_bytes()
    return b"".join(blocks(path, 1 << 22, salvage))
