"""Published throughput tables: CSV in, checked rows out.

Columns: isl, osl, concurrency, config, then metrics whose names carry their unit (total_tok_per_s, req_per_s,
output_tok_per_s, mean_ttft_ms, mean_tpot_ms, mean_itl_ms). One row per configuration and concurrency.
"""

import csv
import math
from dataclasses import dataclass
from pathlib import Path

from latent_moe.errors import InputError

KEYS = ("isl", "osl", "concurrency", "config")
RATES = ("total_tok_per_s", "req_per_s", "output_tok_per_s")
TIMES = ("mean_ttft_ms", "mean_tpot_ms", "mean_itl_ms")
NEEDED = ("total_tok_per_s", "mean_ttft_ms", "mean_tpot_ms")


@dataclass(frozen=True)
class Row:
    """One configuration at one concurrency; `metrics` by name, units in the names."""

    isl: int
    osl: int
    concurrency: int
    config: str
    metrics: dict[str, float]

    @property
    def key(self) -> tuple[int, int, int]:
        """What pairs a baseline row with a candidate row."""
        return self.isl, self.osl, self.concurrency

    @property
    def e2e_ms(self) -> float:
        """Mean time of a request: TTFT + (OSL - 1) TPOT."""
        return self.metrics["mean_ttft_ms"] + (self.osl - 1) * self.metrics["mean_tpot_ms"]


def read(path: str | Path) -> list[Row]:
    """Read a table: a CSV, or a folder that holds table.csv. Raises InputError with file, line and fault."""
    file = Path(path)
    file = file / "table.csv" if file.is_dir() else file
    try:
        with open(file, newline="", encoding="utf-8-sig") as source:
            reader = csv.DictReader(source)
            _check_columns(reader.fieldnames or [], file)
            rows = [_row(raw, f"{file} line {reader.line_num}") for raw in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{file}: cannot be read as a table ({error})") from error
    if not rows:
        raise InputError(f"{file}: the table has no rows")
    return rows


def _check_columns(columns, file: Path) -> None:
    missing = [name for name in (*KEYS, *NEEDED) if name not in columns]
    twice = [name for name in columns if list(columns).count(name) > 1]
    if twice:
        raise InputError(f"{file}: column {twice[0]!r} is there twice")
    odd = [name for name in columns if name not in (*KEYS, *RATES, *TIMES)]
    if odd:
        allowed = ", ".join((*RATES, *TIMES))
        raise InputError(f"{file}: unknown column or unit {odd[0]!r} (known: {', '.join(KEYS)}, {allowed})")
    if missing:
        raise InputError(f"{file}: lacks the columns {', '.join(missing)}")


def _row(raw: dict, where: str) -> Row:
    if None in raw or None in raw.values():
        raise InputError(f"{where}: the number of fields differs from the header's")
    isl, osl, concurrency = (_whole(raw[name], f"{where}: {name}") for name in KEYS[:3])
    metrics = {name: _positive(raw[name], f"{where}: {name}") for name in (*RATES, *TIMES) if raw.get(name)}
    missing = [name for name in NEEDED if name not in metrics]
    if missing:
        raise InputError(f"{where}: {missing[0]} is missing")
    return Row(isl, osl, concurrency, raw["config"], metrics)


def _whole(text: str, where: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise InputError(f"{where} {text!r} is not a whole number of at least 1")
    return value


def _positive(text: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise InputError(f"{where} {text!r} is not a positive number")
    return value


def of_config(rows: list[Row], config: str) -> dict[tuple[int, int, int], Row]:
    """The rows of one configuration by (isl, osl, concurrency). Raises InputError if one stands there twice."""
    chosen = [row for row in rows if row.config == config]
    by_key = {row.key: row for row in chosen}
    if len(by_key) != len(chosen):
        raise InputError(f"the table has two {config!r} rows at one isl, osl and concurrency")
    return by_key


def baseline_rows(rows: list[Row], config: str) -> dict[tuple[int, int, int], Row]:
    """The baseline's rows; every other row needs one. Raises InputError naming what is missing."""
    baseline = of_config(rows, config)
    alone = sorted({row.key for row in rows} - baseline.keys())
    if alone:
        isl, osl, concurrency = alone[0]
        raise InputError(f"no baseline row {config!r} at isl {isl}, osl {osl}, concurrency {concurrency}")
    return baseline
