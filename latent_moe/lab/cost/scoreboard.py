"""Predicted beside published for tables and figures that no constant was fitted to (profiles/public_tables).

What the model cannot say stands there without a prediction, with the reason; what it misses stays in it.
"""

import csv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from latent_moe.config import KIMI_K3
from latent_moe.lab import recordings
from latent_moe.lab.cost import answer, hardware
from latent_moe.lab.cost.gemm import BYTES, gemm
from latent_moe.lab.cost.tail import all_gather_us, all_reduce_us, tail_cost

NAME = "public_tables"
TP, LAYERS = 8, 92
# Tables: file, hardware, what is asked about it besides.
TABLES = (
    ("vllm_50383.csv", "vllm-project/vllm#50383", "b200", {"shard_from": 1024}),
    ("tokenspeed_1145.csv", "lightseekorg/tokenspeed#1145", "mi355x", {"baseline_tail": "joint"}),
)


@dataclass(frozen=True)
class Score:
    """One published figure and the prediction of it; `predicted` None where the model has none, `remark` says why."""

    source: str
    hardware: str
    what: str
    unit: str
    published: float
    predicted: float | None
    remark: str = ""

    @property
    def error(self) -> float | None:
        """Predicted less published in points for per cents, else relative to the published figure."""
        if self.predicted is None:
            return None
        gap = self.predicted - self.published
        return gap if self.unit == "%" else gap / abs(self.published)


def scores() -> list[Score]:
    """Every row of the scoreboard, tables first. Raises InputError where profiles/public_tables is not there."""
    folder = recordings.profile_path(NAME)
    tables = [score for table in TABLES for score in _table(folder, *table)]
    with open(folder / "figures.csv", newline="", encoding="utf-8") as file:
        return tables + [_figure(row) for row in csv.DictReader(file)]


def _table(folder: Path, file: str, source: str, machine: str, about: dict) -> list[Score]:
    asked = {"table": str(folder / file), "hardware": machine, "tp": TP, "layers": LAYERS, **about}
    found = answer.predict(asked)
    how = ", ".join(f"{name} {value}" for name, value in about.items())
    return [
        Score(
            source,
            machine,
            f"{metric} at concurrency {row['concurrency']}",
            "%",
            known,
            row["delta_pct"][metric],
            how,
        )
        for row in found["rows"]
        for metric, known in row["published_delta_pct"].items()
    ]


def _figure(row: dict[str, str]) -> Score:
    tokens, measure = int(row["tokens"]), row["measure"]
    modelled = _MEASURES.get(measure)
    predicted = (
        modelled(tokens, hardware.get(row["hardware"]), row["tail"], row["baseline_tail"])
        if modelled
        else None
    )
    tails = " over ".join(name for name in (row["tail"], row["baseline_tail"]) if name)
    what = (
        f"{tails or 'one operation'}: {measure.replace('none', 'change').replace('_', ' ')} at T = {tokens}"
    )
    return Score(
        row["source"], row["hardware"], what, row["unit"], float(row["published"]), predicted, row["remark"]
    )


def _gemm(tokens: int, machine: hardware.Hardware, _tail: str, _baseline: str) -> float:
    return gemm(tokens, KIMI_K3.hidden_size, KIMI_K3.expert_input_size, machine).us


def _all_gather(tokens: int, machine: hardware.Hardware, _tail: str, _baseline: str) -> float:
    return all_gather_us(BYTES * tokens * KIMI_K3.hidden_size, TP, machine)


def _joint_all_reduce(tokens: int, machine: hardware.Hardware, _tail: str, _baseline: str) -> float:
    width = KIMI_K3.hidden_size + KIMI_K3.expert_input_size
    return all_reduce_us(BYTES * tokens * width, TP, machine)


def _total(tokens: int, machine: hardware.Hardware, tail: str, _baseline: str = "") -> float:
    return tail_cost(tail, tokens, TP, machine).total_us


def _speedup(tokens: int, machine: hardware.Hardware, tail: str, baseline: str) -> float:
    return _total(tokens, machine, baseline) / _total(tokens, machine, tail)


def _step_change(tokens: int, machine: hardware.Hardware, tail: str, baseline: str) -> float:
    return LAYERS * (_total(tokens, machine, tail) - _total(tokens, machine, baseline))


_MEASURES: dict[str, Callable[[int, hardware.Hardware, str, str], float]] = {
    "gemm": _gemm,
    "all_gather": _all_gather,
    "all_reduce": _joint_all_reduce,
    "tail": _total,
    "speedup": _speedup,
    "step_change": _step_change,
}


def text(rows: list[Score]) -> str:
    """One line a figure: published, predicted, the error (points for per cents, else per cent of the published figure)."""
    lines = ["predicted against published; no constant was fitted to any of these"]
    return "\n".join(lines + [_line(row) for row in rows])


def _line(row: Score) -> str:
    if row.predicted is None:
        told = "not predicted"
    else:
        error = f"{row.error:+.2f} points" if row.unit == "%" else f"{100 * (row.error or 0):+.0f} %"
        told = f"predicted {row.predicted:.4g}, off by {error}"
    remark = f" ({row.remark})" if row.remark else ""
    return f"{row.source}, {row.hardware}, {row.what}: published {row.published:g} {row.unit}, {told}{remark}"
