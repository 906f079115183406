"""Tables as people paste them into a pull request: lm_eval's printed table, and throughput of two configurations.

Cells stand between bars, tabs or commas. lm_eval's table names a task once and leaves its cells empty in the rows below;
the throughput table is the pull request's own: ISL/OSL, Conc, Config, then columns with a delta beside each.
"""

import re
from collections.abc import Iterator

from latent_moe.errors import InputError
from latent_moe.lab.results.accuracy import Accuracy
from latent_moe.lab.results.run import Run, possible

_ACCURACY = ("tasks", "filter", "metric", "value", "stderr")
_THROUGHPUT = ("isl/osl", "conc", "config")
_COLUMNS = {
    "total tokens/s": "total_tok_per_s",
    "total reqs/s": "req_per_s",
    "output tokens/s": "output_tok_per_s",
    "mean ttft (ms)": "mean_ttft_ms",
    "mean tpot (ms)": "mean_tpot_ms",
    "mean itl (ms)": "mean_itl_ms",
}
_LENGTH = re.compile(r"(\d+(?:\.\d+)?)(k?)$")
_RULE = re.compile(r"[\s|:+-]*$")

Cells = dict[str, str]


def looks_pasted(text: str) -> bool:
    """Whether some line is the header of one of the two tables."""
    return any(_header(line) for line in text.splitlines())


def read_pasted(text: str, where: str) -> tuple[list[Run], list[Accuracy]]:
    """(throughput rows, accuracies), in the order of the text. Raises InputError with the line of a cell that is no number."""
    runs, accuracies = [], []
    for number, names, cells in _rows(text):
        place = f"{where} line {number}"
        if "config" in names:
            runs.append(_run(cells, place))
        else:
            accuracies.append(_accuracy(cells, place))
    return runs, accuracies


def _header(line: str) -> list[str] | None:
    names = [name.lower() for name in _cells(line)]
    wanted = (_ACCURACY, _THROUGHPUT)
    return names if any(set(columns) <= set(names) for columns in wanted) else None


def _cells(line: str) -> list[str]:
    separator = "|" if "|" in line else "\t" if "\t" in line else ","
    return [cell.strip() for cell in line.strip("\n").strip("|" if separator == "|" else "").split(separator)]


def _rows(text: str) -> Iterator[tuple[int, list[str], Cells]]:
    names: list[str] | None = None
    above: Cells = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _header(line):
            names, above = header, {}
        elif names and _RULE.match(line) and "-" in line:
            continue
        elif names and len(values := _cells(line)) > 1:
            # The first of two columns of one name: a delta stands under a name that repeats.
            cells = {name: value for name, value in reversed(list(zip(names, values, strict=False))) if name}
            above = {name: value or above.get(name, "") for name, value in cells.items()}
            yield number, names, above
        else:
            names = None


def _run(cells: Cells, where: str) -> Run:
    isl, _, osl = cells["isl/osl"].partition("/")
    printed = {name: cells[column].replace(",", "") for column, name in _COLUMNS.items() if cells.get(column)}
    numbers = {name: _number(text, name, where) for name, text in printed.items()}
    return Run(
        source=where,
        arm=cells["config"] or None,
        isl=_length(isl, where),
        osl=_length(osl, where),
        concurrency=int(_number(cells["conc"], "conc", where)),
        values={name: value for name, value in numbers.items() if possible(value)},
        impossible={name: value for name, value in numbers.items() if not possible(value)},
        printed=printed,
        kind="published",
    )


def _length(text: str, where: str) -> int:
    stated = _LENGTH.match(text.strip().lower())
    if stated is None:
        raise InputError(f"{where}: {text!r} is no length (as 8192 or 8k)")
    return int(float(stated.group(1)) * (1024 if stated.group(2) else 1))


def _accuracy(cells: Cells, where: str) -> Accuracy:
    error, shots = cells.get("stderr", ""), cells.get("n-shot", "")
    return Accuracy(
        source=where,
        arm=None,
        task=cells["tasks"].lstrip(" -"),
        metric=cells["metric"],
        filter=cells["filter"],
        value=_number(cells["value"], "value", where),
        stderr=None if error in ("", "N/A") else _number(error, "stderr", where),
        questions=None,
        shots=int(shots) if shots.isdecimal() else None,
        version=cells.get("version") or None,
    )


def _number(text: str, name: str, where: str) -> float:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        raise InputError(f"{where}: {name} is {text[:40]!r}, a number was expected") from None
