"""CSV as people really have it: byte-order marks, other delimiters, CRLF, cells that a spreadsheet rewrote."""

import csv
import io
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np

from latent_moe.errors import InputError
from latent_moe.lab.traces.readers.source import blocks, head

_ROWS = 20_000
_ROUNDED = re.compile(r"[+-]?\d+(?:[.,]\d+)?[eE]\+?\d+$")
csv.field_size_limit(1 << 24)


class Table:
    """One CSV file: `header` (lower case), and `chunks()` of its rows as {column: list of cells}.

    Cells behind an unquoted comma in `wide` (a kernel's name) are put together again. Raises InputError: a row with
    too few cells, unless `salvage`, which leaves it out and sets `cut`.
    """

    def __init__(self, path: Path, wide: str = "kernel_name", salvage: bool = False):
        self.path, self.wide, self.salvage = path, wide, salvage
        self.cut, self.row = False, 1
        start = head(path)
        self.encoding = "utf-16" if start[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
        self.delimiter, self.header = header_of(start.decode(self.encoding, "replace"))

    def chunks(self) -> Iterator[dict[str, tuple[str, ...]]]:
        rows = self._rows()
        next(rows, None)
        while chunk := list(islice(rows, _ROWS)):
            good = self._whole(chunk)
            yield dict(zip(self.header, zip(*good, strict=True), strict=True)) if good else {}
            self.row += len(chunk)

    def _rows(self) -> Iterator[list[str]]:
        raw = io.BufferedReader(_Raw(blocks(self.path, 1 << 20, self.salvage)), 1 << 20)
        text = io.TextIOWrapper(raw, self.encoding, errors="replace", newline="")
        try:
            yield from (row for row in csv.reader(text, delimiter=self.delimiter) if row)
        except csv.Error as error:
            raise InputError(f"{self.path}: damaged CSV near row {self.row} ({error})") from None

    def _whole(self, chunk: list[list[str]]) -> list[list[str]]:
        width = len(self.header)
        if all(len(row) == width for row in chunk):
            return chunk
        mended = [self._mended(row, self.row + place) for place, row in enumerate(chunk, 1)]
        return [row for row in mended if row]

    def _mended(self, row: list[str], number: int) -> list[str] | None:
        extra = len(row) - len(self.header)
        if extra == 0:
            return row
        if extra < 0:
            if not self.salvage:
                cells = f"{len(row)} of {len(self.header)} cells"
                raise InputError(f"{self.path}: truncated or damaged CSV, row {number} has {cells}")
            self.cut = True
            return None
        if not any(row[-extra:]):
            return row[:-extra]
        place = self.header.index(self.wide) if self.wide in self.header else 0
        return [*row[:place], self.delimiter.join(row[place : place + extra + 1]), *row[place + extra + 1 :]]

    def numbers(self, cells: tuple[str, ...], column: str, absent: int) -> np.ndarray:
        """Cells as int64, empty ones as `absent`. Raises InputError that names column, row and cell."""
        try:
            return np.array(list(map(int, cells)), dtype=np.int64)
        except (ValueError, OverflowError):
            return np.array(
                [self._number(c, column, absent, n) for n, c in enumerate(cells, 1)], dtype=np.int64
            )

    def _number(self, cell: str, column: str, absent: int, place: int) -> int:
        cell = cell.strip()
        if not cell:
            return absent
        where = f"{self.path}: column {self.title(column)}, row {self.row + place}"
        if _ROUNDED.match(cell):
            raise InputError(
                f"{where}: {cell} was rounded by a spreadsheet, the precision is gone; use the original file"
            )
        try:
            value = int(cell)
        except ValueError:
            raise InputError(f"{where}: {cell[:40]!r} is no whole number") from None
        if not -(1 << 62) < value < 1 << 62:
            raise InputError(f"{where}: {cell[:40]} is no time or identifier of 64 bits")
        return value

    def title(self, column: str) -> str:
        """The column's name as rocprofv3 spells it."""
        return "_".join(word.capitalize() for word in column.split("_"))


class _Raw(io.RawIOBase):
    """Blocks of bytes as a raw file."""

    def __init__(self, source: Iterator[bytes]):
        self.source, self.rest = source, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        self.rest = self.rest or memoryview(next(self.source, b""))
        size = min(len(buffer), len(self.rest))
        buffer[:size], self.rest = self.rest[:size], self.rest[size:]
        return size


def header_of(text: str) -> tuple[str, list[str]]:
    """(delimiter, lower-case column names) of the first line that is not empty."""
    line = next((line for line in text.splitlines() if line.strip()), "")
    delimiter = max(",;\t", key=line.count)
    cells = next(csv.reader([line], delimiter=delimiter), [])
    return delimiter, [cell.strip().lower() for cell in cells]
