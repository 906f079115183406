"""Published tables: CSV with isl, osl, concurrency, config and the metric columns, read without losing a digit."""

import csv
import io
import math

from latent_moe.errors import InputError
from latent_moe.lab.results.run import METRICS, Run, possible


def looks_like_published(text: str) -> bool:
    """Whether the first line names concurrency, config and at least one metric."""
    header = [name.strip() for name in text.lstrip("\ufeff").split("\n", 1)[0].split(",")]
    return "concurrency" in header and "config" in header and any(name in METRICS for name in header)


def runs_from_published(text: str, where: str) -> list[Run]:
    """One Run per line; an empty cell is a number that was not published. Raises InputError with the line."""
    try:
        reader = csv.DictReader(
            io.StringIO(text.lstrip("\ufeff"), newline=""), strict=True, skipinitialspace=True
        )
        names = [name.strip() for name in reader.fieldnames or []]
        rows = list(reader)
    except csv.Error as error:
        raise InputError(f"{where}: not CSV ({error})") from error
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InputError(f"{where} line 1: column {twice[0]!r} is there twice")
    if not rows:
        raise InputError(f"{where}: a header and no row")
    return [_run(row, f"{where} line {number}") for number, row in enumerate(rows, start=2)]


def _run(row: dict[str, str | None], where: str) -> Run:
    if None in row or None in row.values():
        raise InputError(f"{where}: another number of columns than the header")
    cells = {str(name).strip(): str(value).strip() for name, value in row.items()}
    printed = {name: cells[name] for name in METRICS if cells.get(name)}
    if not cells.get("config"):
        raise InputError(f"{where}: config is empty")
    numbers = {name: _number(text, name, where) for name, text in printed.items()}
    return Run(
        source=where,
        arm=cells["config"],
        isl=_whole(cells.get("isl", ""), "isl", where),
        osl=_whole(cells.get("osl", ""), "osl", where),
        concurrency=_whole(cells.get("concurrency", ""), "concurrency", where),
        values={name: value for name, value in numbers.items() if possible(value)},
        impossible={name: value for name, value in numbers.items() if not possible(value)},
        printed={name: text for name, text in printed.items() if possible(numbers[name])},
        kind="published",
    )


def _whole(text: str, key: str, where: str) -> int | None:
    if text == "":
        return None
    if not text.isdecimal() or not int(text[:16]) > 0 or len(text) > 12:
        raise InputError(f"{where}: {key} is {text[:40]!r}, a positive whole number was expected")
    return int(text)


def _number(text: str, key: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(f"{where}: {key} is {text[:40]!r}, a number was expected")
    return value
