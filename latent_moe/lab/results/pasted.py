"""Tables as people paste them into a pull request: lm_eval's printed table, and throughput of two configurations.

Cells stand between bars, tabs or commas, as in the header. Rows leave the cells empty that name what the row above names;
an empty figure is a figure that was not printed. The throughput table is the pull request's own: ISL/OSL, Conc, Config, then
columns with a delta beside each.
"""

import re
from collections.abc import Iterator

from latent_moe.errors import InputError
from latent_moe.lab.results.accuracy import Accuracy
from latent_moe.lab.results.run import Run, possible

_ACCURACY = ("tasks", "filter", "metric", "value", "stderr")
_THROUGHPUT = ("isl/osl", "conc", "config")
# What a row may leave to the row above.
_CARRIED = ("tasks", "version", "n-shot", *_THROUGHPUT)
_COLUMNS = {
    "total tokens/s": "total_tok_per_s",
    "total reqs/s": "req_per_s",
    "output tokens/s": "output_tok_per_s",
    "mean ttft (ms)": "mean_ttft_ms",
    "mean tpot (ms)": "mean_tpot_ms",
    "mean itl (ms)": "mean_itl_ms",
}
_ABSENT = ("", "-", "–", "n/a", "N/A")
_LENGTHS = re.compile(r"(\d+(?:\.\d+)?)(k?)/(\d+(?:\.\d+)?)(k?)$")
_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d{1,3})?$", re.ASCII)
_RULE = re.compile(r"[\s|:+-]*$")
_MOST_IN_FLIGHT = 10**6

Cells = dict[str, str]


def looks_pasted(text: str) -> bool:
    """Whether some line is the header of one of the two tables."""
    return any(_header(line) for line in text.splitlines())


def read_pasted(text: str, where: str) -> tuple[list[Run], list[Accuracy]]:
    """(throughput rows, accuracies), in the order of the text.

    Raises InputError with the line: a cell that is no number, a column of another unit, a table without a known figure, or
    a row that stands twice (two tables in one text are two subjects).
    """
    runs, accuracies = [], []
    seen: set[tuple] = set()
    for number, names, cells in _rows(text, where):
        place = f"{where} line {number}"
        if "config" in names:
            runs.append(_run(cells, place))
            key: tuple = (runs[-1].arm, *runs[-1].cell)
        else:
            accuracies.append(_accuracy(cells, place))
            key = (accuracies[-1].key,)
        if key in seen:
            raise InputError(f"{place}: the row stands twice; give one table at a time")
        seen.add(key)
    return runs, accuracies


def _header(line: str) -> list[str] | None:
    names = [name.lower() for name in _cells(line, _separator(line))]
    wanted = (_ACCURACY, _THROUGHPUT)
    return names if any(set(columns) <= set(names) for columns in wanted) else None


def _separator(line: str) -> str:
    return "|" if "|" in line else "\t" if "\t" in line else ","


def _cells(line: str, separator: str) -> list[str]:
    text = line.strip("\n").strip().strip("|") if separator == "|" else line.strip("\n")
    return [cell.strip().strip("*").strip() for cell in text.split(separator)]


def _rows(text: str, where: str) -> Iterator[tuple[int, list[str], Cells]]:
    names: list[str] | None = None
    separator, above = "", Cells()
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _header(line):
            names, separator, above = header, _separator(line), Cells()
            _check_columns(names, f"{where} line {number}")
        elif names and _RULE.match(line) and "-" in line:
            continue
        elif names and separator in line and (cells := _row(names, _cells(line, separator), above)):
            above = cells
            yield number, names, cells
        else:
            names = None


def _row(names: list[str], values: list[str], above: Cells) -> Cells | None:
    """The row by column; None where it is none of this table's: more cells than columns, or no lengths where lengths stand."""
    # Read from the right: of two columns of one name the first counts, the later is a delta.
    cells = {name: value for name, value in reversed(list(zip(names, values, strict=False))) if name}
    carried = {name: cells.get(name) or above.get(name, "") for name in _CARRIED if name in names}
    whole = all(carried.get(name) for name in (_THROUGHPUT if "config" in names else ("tasks",)))
    lengths = "isl/osl" not in names or _LENGTHS.match(carried["isl/osl"].lower())
    return cells | carried if len(values) <= len(names) and whole and lengths else None


def _check_columns(names: list[str], where: str) -> None:
    if "config" not in names:
        return
    odd = [name for name in names if name.startswith(("mean ", "total ", "output ")) and name not in _COLUMNS]
    if odd or not set(names) & set(_COLUMNS):
        shown = f"column {odd[0]!r} is not known" if odd else "no column with a known figure"
        raise InputError(f"{where}: {shown} (known: {', '.join(_COLUMNS)})")


def _run(cells: Cells, where: str) -> Run:
    printed = {
        name: cells[column].replace(",", "") for column, name in _COLUMNS.items() if _said(cells, column)
    }
    numbers = {
        name: _number(cells[column], column, where) for column, name in _COLUMNS.items() if name in printed
    }
    isl, osl = _lengths(cells["isl/osl"], where)
    return Run(
        source=where,
        arm=cells["config"],
        isl=isl,
        osl=osl,
        concurrency=_in_flight(cells["conc"], where),
        values={name: value for name, value in numbers.items() if possible(value)},
        impossible={name: value for name, value in numbers.items() if not possible(value)},
        printed={name: text for name, text in printed.items() if possible(numbers[name])},
        kind="published",
    )


def _said(cells: Cells, column: str) -> bool:
    return cells.get(column, "") not in _ABSENT


def _lengths(text: str, where: str) -> tuple[int, int]:
    stated = _LENGTHS.match(text.lower())
    sizes = [] if stated is None else [(stated.group(1), stated.group(2)), (stated.group(3), stated.group(4))]
    tokens = [round(float(size) * (1024 if thousand else 1)) for size, thousand in sizes if len(size) < 12]
    if len(tokens) != 2 or min(tokens) < 1:
        raise InputError(f"{where}: {text[:40]!r} are no lengths (as 8192/1024 or 8k/1k)")
    return tokens[0], tokens[1]


def _in_flight(text: str, where: str) -> int:
    value = _number(text, "conc", where)
    if not value.is_integer() or not 1 <= value <= _MOST_IN_FLIGHT:
        raise InputError(f"{where}: conc is {text[:40]!r}, a positive whole number was expected")
    return int(value)


def _accuracy(cells: Cells, where: str) -> Accuracy:
    shots = cells.get("n-shot", "")
    return Accuracy(
        source=where,
        arm=None,
        task=cells["tasks"].lstrip(" -"),
        metric=cells.get("metric", ""),
        filter=cells.get("filter", ""),
        value=_share(cells.get("value", ""), "value", where),
        stderr=_share(cells["stderr"], "stderr", where) if _said(cells, "stderr") else None,
        questions=None,
        shots=int(shots) if shots.isdecimal() and len(shots) < 6 else None,
        version=cells.get("version") or None,
    )


def _share(text: str, name: str, where: str) -> float:
    value = _number(text, name, where)
    if not 0 <= value <= 1:
        raise InputError(f"{where}: {name} is {text[:40]!r}, a share between 0 and 1 was expected")
    return value


def _number(text: str, name: str, where: str) -> float:
    if not _NUMBER.match(text):
        raise InputError(f"{where}: {name} is {text[:40]!r}, a number was expected (as 2000.5 or 2,000.5)")
    return float(text.replace(",", ""))
