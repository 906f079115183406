"""The table as Markdown (the columns of the pull request), CSV (one line a row) and a DataFrame for plots."""

import csv
import io
from collections.abc import Iterable, Iterator
from itertools import groupby

from latent_moe.lab.results.comparison import NOT_COMPARABLE, Row, Table
from latent_moe.lab.results.run import METRICS, PRIMARY
from latent_moe.lab.results.stats import SIGN_FLIP_BELOW

_ABSENT = "–"
_CSV_COLUMNS = (
    *(
        "isl",
        "osl",
        "concurrency",
        "metric",
        "baseline",
        "candidate",
        "delta_pct",
        "ci95_low_pct",
        "ci95_high_pct",
    ),
    *("verdict", "reason", "pairs", "interval", "baseline_arm", "candidate_arm", "kind", "device"),
)


def markdown(table: Table) -> str:
    """Both arms with the PR's columns, then every delta with its interval and verdict, then the notes."""
    parts = [_head(table), _figures(table)]
    if table.candidate is not None:
        parts.append(_deltas(table))
    parts += [f"Not comparable at {where}: {reason}." for where, reason in _refusals(table.rows)]
    parts += [f"Note ({note.code}): {note.message}." for note in table.warnings]
    return "\n\n".join(part for part in parts if part)


def _head(table: Table) -> str:
    arms = f"{table.baseline} (baseline)" + (
        f" against {table.candidate} (candidate)" if table.candidate else ""
    )
    device = f" on {', '.join(table.devices)}" if table.devices else ""
    text = f"{arms}; numbers: {', '.join(table.kinds) or 'none'}{device}. Primary metric: {PRIMARY}."
    methods = sorted({row.interval for row in table.rows if row.interval})
    counts = sorted({row.pairs for row in table.rows if row.interval})
    if methods:
        spread = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        text += f" 95 % intervals: {' and '.join(methods)}, {spread} pairs; means are geometric."
    few = [row for row in table.rows if row.metric == PRIMARY and row.sign_flip_p is not None]
    if few:
        shown = ", ".join(f"{row.sign_flip_p:.2g} at concurrency {_known(row.concurrency)}" for row in few)
        text += f" Under {SIGN_FLIP_BELOW} pairs the t interval takes log ratios as normal; sign-flip p of {PRIMARY}: {shown}."
    return text


def _figures(table: Table) -> str:
    names = [name for name in METRICS if any(row.metric == name for row in table.rows)]
    lines = _header(["ISL/OSL", "Concurrency", "Arm", *(METRICS[name].label for name in names)])
    for cell, rows in _cells(table.rows):
        by_name = {row.metric: row for row in rows}
        lines.append(
            _line([*cell, table.baseline, *(_value(by_name.get(name), "baseline") for name in names)])
        )
        if table.candidate is not None:
            cells = (_with_delta(by_name.get(name)) for name in names)
            lines.append(_line([*cell, table.candidate, *cells]))
    return "\n".join(lines)


def _deltas(table: Table) -> str:
    lines = _header(["ISL/OSL", "Concurrency", "Metric", "Delta", "95 % interval", "Pairs", "Verdict"])
    for cell, rows in _cells(table.rows):
        lines += [_line([*cell, *_delta_cells(row)]) for row in rows]
    return "\n".join(lines)


def _delta_cells(row: Row) -> list[str]:
    name = f"**{row.metric}**" if row.metric == PRIMARY else row.metric
    ends = f"{row.ci95_pct[0]:+.2f} to {row.ci95_pct[1]:+.2f} %" if row.ci95_pct else _ABSENT
    return [name, _delta(row), ends, str(row.pairs), _verdict(row)]


def _verdict(row: Row) -> str:
    words = [(row.verdict or _ABSENT).replace("_", " ")]
    if row.exploratory and row.verdict in ("improved", "regressed"):
        words.append("exploratory")
    if row.equivalent:
        words.append("within the margin")
    return ", ".join(words)


def _delta(row: Row) -> str:
    return _ABSENT if row.delta_pct is None else f"{row.delta_pct:+.2f} %"


def _with_delta(row: Row | None) -> str:
    value = _value(row, "candidate")
    return value if row is None or row.delta_pct is None else f"{value} ({_delta(row)})"


def _value(row: Row | None, side: str) -> str:
    """The published digits where there are some, else as many as the PR prints."""
    if row is None:
        return _ABSENT
    return _digits(getattr(row, f"{side}_text"), getattr(row, side), row.metric)


def _digits(printed: str | None, value: float | None, metric: str) -> str:
    if printed or value is None:
        return printed or _ABSENT
    return (
        f"{value:.{3 if METRICS[metric].unit == 'req/s' or (value < 100 and metric.endswith('_ms')) else 2}f}"
    )


def _cells(rows: Iterable[Row]) -> Iterator[tuple[list[str], list[Row]]]:
    """Rows by cell: ([lengths, concurrency], rows). Rows of one cell stand together and a metric occurs once."""
    number = 0
    seen: set[tuple] = set()
    keyed = []
    for row in rows:
        cell = (row.isl, row.osl, row.concurrency, row.request_rate)
        if (cell, row.metric) in seen:  # unpooled runs share their unknown cell
            number, seen = number + 1, set()
        seen.add((cell, row.metric))
        keyed.append(((number, *cell), row))
    for (_, isl, osl, concurrency, rate), group in groupby(keyed, key=lambda item: item[0]):
        load = _known(concurrency) if rate is None else f"no limit, {rate} req/s"
        yield [f"{_known(isl)}/{_known(osl)}", load], [row for _, row in group]


def _known(value: int | None) -> str:
    return "unknown" if value is None else str(value)


def _refusals(rows: Iterable[Row]) -> list[tuple[str, str]]:
    found = [
        (f"{cell[0]}, concurrency {cell[1]}", str(row.reason))
        for cell, group in _cells(rows)
        for row in group
        if row.verdict == NOT_COMPARABLE
    ]
    return list(dict.fromkeys(found))


def _header(names: list[str]) -> list[str]:
    return [_line(names), "|" + "|".join(["---"] * len(names)) + "|"]


def _line(cells: Iterable[str | None]) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def csv_text(*tables: Table) -> str:
    """One line a row of every table; a number that does not exist is an empty cell."""
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, _CSV_COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(_tidy(table, row) for table in tables for row in table.rows)
    return out.getvalue()


def _tidy(table: Table, row: Row) -> dict:
    low, high = row.ci95_pct or (None, None)
    shown = vars(row) | {"ci95_low_pct": low, "ci95_high_pct": high}
    shown |= {"baseline_arm": table.baseline, "candidate_arm": table.candidate}
    shown |= {"kind": ", ".join(table.kinds), "device": ", ".join(table.devices)}
    shown["baseline"] = row.baseline_text or row.baseline
    shown["candidate"] = row.candidate_text or row.candidate
    return {name: shown[name] for name in _CSV_COLUMNS}


def frame(table: Table):
    """A pandas DataFrame, one line a row, for plots: the columns of the CSV with floats, plus `label`, `unit` and
    `primary`. Missing numbers are NaN.
    """
    import pandas as pd

    numbers = [
        "isl",
        "osl",
        "concurrency",
        "baseline",
        "candidate",
        "delta_pct",
        "ci95_low_pct",
        "ci95_high_pct",
    ]
    found = pd.DataFrame([_tidy(table, row) for row in table.rows], columns=list(_CSV_COLUMNS))
    found[numbers] = found[numbers].apply(pd.to_numeric)
    found["label"] = [METRICS[name].label for name in found["metric"]]
    found["unit"] = [METRICS[name].unit for name in found["metric"]]
    found["primary"] = found["metric"] == PRIMARY
    return found
