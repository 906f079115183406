"""How far a delta of printed numbers can be trusted: half a unit of the last decimal on either side."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from latent_moe.lab.results import Warning

_WORTH_SAYING_PP = 0.05


def resolution_pp(baseline_text: str, candidate_text: str) -> float:
    """Percentage points by which the delta of two printed numbers may be off through rounding alone."""
    return sum(50 * 10.0 ** -_decimals(text) / abs(float(text)) for text in (baseline_text, candidate_text))


def _decimals(text: str) -> int:
    return len(text.partition(".")[2]) if "e" not in text.lower() else 0


def rounding_warnings(rows: Iterable[Any]) -> list[Warning]:
    """One warning per metric whose deltas suffer from the printed decimals; names a better source where there is one."""
    rows = list(rows)
    coarse: dict[str, list[Any]] = defaultdict(list)
    for row in rows:
        texts = (row.baseline_text, row.candidate_text)
        if row.delta_pct is not None and all(texts) and resolution_pp(*texts) > _WORTH_SAYING_PP:
            coarse[row.metric].append(row)
    return [_warning(metric, found, rows) for metric, found in coarse.items()]


def _warning(metric: str, found: list[Any], rows: list[Any]) -> Warning:
    worst = max(resolution_pp(row.baseline_text, row.candidate_text) for row in found)
    decimals = max(_decimals(row.baseline_text) for row in found)
    text = f"{metric} is printed with {decimals} decimals: its deltas are rounded and known to {worst:.2f} points only"
    if metric == "req_per_s" and (better := _from_tokens(found, rows)):
        text += f"; output_tok_per_s, the same rate times the output length, gives {better}"
    return Warning("rounded_values", text)


def _from_tokens(found: list[Any], rows: list[Any]) -> str:
    cells = {(row.isl, row.osl, row.concurrency) for row in found}
    same = [
        row
        for row in rows
        if row.metric == "output_tok_per_s" and (row.isl, row.osl, row.concurrency) in cells
    ]
    return ", ".join(f"{row.delta_pct:+.2f} %" for row in same if row.delta_pct is not None)
