"""The model's constants, one CSV row each: name, value, unit, kind, source.

Kinds: vendor (a data sheet), published (somebody else's measurement), measured (ours, under profiles/), assumed
(nobody's measurement: said so wherever it is used).
"""

import csv
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from latent_moe.errors import InputError

BUILT_IN = Path(__file__).with_name("constants.csv")
COLUMNS = ("name", "value", "unit", "kind", "source")
UNITS = ("TFLOP/s", "TB/s", "GB/s", "MB", "us", "ratio", "count")
KINDS = ("vendor", "published", "measured", "assumed")


@dataclass(frozen=True)
class Constant:
    """One figure with where it comes from."""

    name: str
    value: float
    unit: str
    kind: str
    source: str


@cache
def built_in() -> dict[str, Constant]:
    """The constants that come with the package, by name."""
    return load(BUILT_IN)


def load(path: str | Path) -> dict[str, Constant]:
    """Read a constants CSV. Raises InputError with file, line and fault."""
    try:
        with open(path, newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            if tuple(reader.fieldnames or ()) != COLUMNS:
                raise InputError(f"{path}: the columns must be {','.join(COLUMNS)}")
            rows = [_constant(row, f"{path} line {reader.line_num}") for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: cannot be read as a constants CSV ({error})") from error
    return _by_name(rows, path)


def _by_name(rows: list[Constant], path) -> dict[str, Constant]:
    named = {row.name: row for row in rows}
    if len(named) != len(rows):
        names = [row.name for row in rows]
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"{path}: {twice} stands there twice")
    return named


def _constant(row: dict[str, str], where: str) -> Constant:
    if None in row.values() or not all(row[column] for column in COLUMNS):
        raise InputError(f"{where}: every constant needs a name, a value, a unit, a kind and a source")
    if row["unit"] not in UNITS:
        raise InputError(f"{where}: unknown unit {row['unit']!r} (there are: {', '.join(UNITS)})")
    if row["kind"] not in KINDS:
        raise InputError(f"{where}: unknown kind {row['kind']!r} (there are: {', '.join(KINDS)})")
    return Constant(row["name"], _number(row["value"], where), row["unit"], row["kind"], row["source"])


def _number(text: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0:
        raise InputError(f"{where}: {text!r} is not a number of at least 0")
    return value
