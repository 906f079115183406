"""Trace files before their format is known: bytes, packed or not, and SQLite databases; with their faults as one line."""

import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from latent_moe.errors import InputError
from latent_moe.files import check_regular

# A trace packs to about a twentieth; gzip's most is a thousandth, which nothing but repetition reaches.
_BOMB_BYTES, _BOMB_RATIO = 64 << 20, 200
GZIP = b"\x1f\x8b"
SQLITE = b"SQLite format 3\x00"


def head(path: Path, size: int = 65536) -> bytes:
    """The first bytes, unpacked when the file is gzip. Raises InputError: unreadable, empty, not gzip after all."""
    check_regular(path)
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
    count, stream, whole, read = 0, zlib.decompressobj(wbits=31), False, 0
    try:
        for packed in _packed(path):
            read += len(packed)
            while packed:
                if count > max(_BOMB_BYTES, _BOMB_RATIO * read):
                    raise InputError(
                        f"{path}: unpacks to more than {_BOMB_RATIO} times its size: this is no trace"
                    )
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


_ROWS = 1 << 16


@contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    """A read-only connection. Every sqlite3 error inside becomes an InputError that names the file."""
    # Without a write-ahead log beside it nothing can change the file: then no lock and no -shm file is needed.
    log = path.with_name(path.name + "-wal")
    mode = "mode=ro" if log.exists() and log.stat().st_size else "mode=ro&immutable=1"
    try:
        connection = sqlite3.connect(f"{path.resolve().as_uri()}?{mode}", uri=True)
        connection.text_factory = lambda text: text.decode("utf-8", "replace")
        try:
            yield connection
        finally:
            connection.close()
    except (sqlite3.Error, OverflowError, ValueError) as error:
        raise InputError(f"{path}: damaged SQLite database ({error})") from None


def quoted(name: str) -> str:
    """A table or column name for a statement."""
    return '"' + name.replace('"', '""') + '"'


def tables(connection: sqlite3.Connection) -> dict[str, str]:
    """Name -> "table" or "view"."""
    found = connection.execute(
        "SELECT name, type FROM sqlite_master WHERE type IN ('table', 'view')"
    ).fetchall()
    return {str(name): kind for name, kind in found}


def columns_of(connection: sqlite3.Connection, table: str) -> list[str]:
    """Column names of a table or view."""
    return [row[1] for row in connection.execute(f"PRAGMA table_info({quoted(table)})")]


def integers(
    connection, statement: str, width: int, n: int, path: Path, parameters=(), strict=None
) -> np.ndarray:
    """[width, n] int64: a statement's columns, fetched block by block into place.

    n is the number of rows it yields at most; fewer make a narrower array. Cells that are no whole numbers become -1;
    in the columns `strict` (indices; None: all) they raise InputError, as more rows than n do.
    """
    result, place = np.empty((width, n), dtype=np.int64), 0
    cursor = connection.execute(statement, parameters)
    while width and (rows := cursor.fetchmany(_ROWS)):
        try:
            result[:, place : place + len(rows)] = _block(rows, strict)
        except (TypeError, ValueError, OverflowError) as error:
            raise InputError(f"{path}: damaged database, a cell is no whole number ({error})") from None
        place += len(rows)
    return result[:, :place] if width else result


def _block(rows: list[tuple], strict) -> np.ndarray:
    try:
        return np.array(rows, dtype=np.int64).T
    except (TypeError, ValueError, OverflowError):
        if strict is None:
            raise
    mended = [[v if i in strict or isinstance(v, int) else -1 for i, v in enumerate(row)] for row in rows]
    return np.array(mended, dtype=np.int64).T
