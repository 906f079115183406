"""Benchmark result files as table rows: the runs/*.json of a recording made by `latent-moe bench`."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from latent_moe.errors import InputError
from latent_moe.lab.cost.throughput_table import Row

# vLLM's benchmark client calls the table's metrics so.
METRICS = {
    "total_tok_per_s": "total_token_throughput",
    "req_per_s": "request_throughput",
    "output_tok_per_s": "output_throughput",
    "mean_ttft_ms": "mean_ttft_ms",
    "mean_tpot_ms": "mean_tpot_ms",
    "mean_itl_ms": "mean_itl_ms",
}

Key = tuple[int, int, int, str]  # isl, osl, concurrency, arm
ROLES = ("baseline", "candidate")
KEYS = ("isl", "osl", "concurrency")
NEEDED = ("total_token_throughput", "mean_ttft_ms", "mean_tpot_ms")
IMPOSSIBLE = 1e15  # in any of these units
LENGTHS_DIFFER = 0.01  # of the tokens asked for


def is_recording(path: str | Path) -> bool:
    """Whether `path` is a folder with runs/*.json."""
    return any(Path(path).glob("runs/*.json"))


@dataclass(frozen=True)
class Recorded:
    """What a folder's warm runs say: `rows`, one per arm (by name) and concurrency; `arms`, {role: names, sorted};
    `left_out`, {(isl, osl, concurrency, arm): why} of rows that cannot be compared and are not among the rows.
    """

    rows: list[Row]
    arms: dict[str, list[str]]
    left_out: dict[Key, str]


def read(path: str | Path) -> Recorded:
    """The runs of a folder; a row is the geometric mean over its warm runs, which is what `latent-moe table` shows.

    Rows with failed requests or answers of other lengths than asked for are left out; where that is the baseline's row,
    the candidates' rows of its cell with it. Raises InputError naming the file that cannot be used.
    """
    groups: dict[Key, list[dict]] = {}
    arms: dict[str, set[str]] = {role: set() for role in ROLES}
    for run in _warm(path):
        about = run["latent_moe"]
        arms[about["role"]].add(about["arm"])
        key = (about["isl"], about["osl"], about["concurrency"], about["arm"])
        groups.setdefault(key, []).append(run)
    bad = _left_out(groups, arms["baseline"])
    rows = [Row(*key, _means(runs)) for key, runs in sorted(groups.items()) if key not in bad]
    return Recorded(rows, {role: sorted(names) for role, names in arms.items()}, bad)


def _left_out(groups: dict[Key, list[dict]], baselines: set[str]) -> dict[Key, str]:
    why = {key: found for key, runs in sorted(groups.items()) if (found := _not_whole(runs))}
    cells = {key[:3]: text for key, text in why.items() if key[3] in baselines}
    return {key: why.get(key) or cells[key[:3]] for key in sorted(groups) if key in why or key[:3] in cells}


def _not_whole(runs: list[dict]) -> str | None:
    """Why these runs say nothing about the arm, or None."""
    failed = sum(run.get("failed") or 0 for run in runs)
    if failed:
        asked = sum(run.get("num_prompts") or 0 for run in runs)
        return f"{failed} of {asked} requests failed"
    for run in runs:
        done, out = run.get("completed"), run.get("total_output_tokens")
        if done and out and abs(out / done / run["latent_moe"]["osl"] - 1) > LENGTHS_DIFFER:
            return f"answers of {out / done:.4g} tokens where {run['latent_moe']['osl']} were asked for"
    return None


def _warm(path: str | Path) -> list[dict]:
    """The runs that count: of a baseline or a candidate, warm. Raises InputError where there are none."""
    loaded = [_load(file) for file in sorted(Path(path).glob("runs/*.json"))]
    found = [
        run for run in loaded if run["latent_moe"]["role"] in ROLES and not run["latent_moe"].get("cold")
    ]
    if not found:
        raise InputError(f"{path}: no warm baseline or candidate runs under runs/")
    return found


def _load(file: Path) -> dict:
    try:
        run = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{file}: not a benchmark result ({error})") from error
    about = run.get("latent_moe") if isinstance(run, dict) else None
    if not isinstance(about, dict):
        raise InputError(f"{file}: not a benchmark result of `latent-moe bench`")
    if not isinstance(about.get("arm"), str) or about.get("role") not in (*ROLES, None):
        raise InputError(
            f"{file}: arm {about.get('arm')!r} in the role {about.get('role')!r}: not a benchmark result"
        )
    for name in KEYS:
        _check_positive(about.get(name), f"{file}: {name}", whole=True)
    for name in NEEDED:
        _check_positive(run.get(name), f"{file}: {name}")
    for name in METRICS.values():
        if run.get(name):
            _check_positive(run[name], f"{file}: {name}")
    return run


def _check_positive(value: Any, where: str, whole: bool = False) -> None:
    kinds = int if whole else int | float
    if isinstance(value, bool) or not isinstance(value, kinds) or not 0 < value < IMPOSSIBLE:
        asked = "positive whole number" if whole else "positive number"
        raise InputError(f"{where} is {str(value)[:40]}, a {asked} was expected")


def _means(runs: Iterable[dict]) -> dict[str, float]:
    runs = list(runs)
    shared = {name: key for name, key in METRICS.items() if all(run.get(key) for run in runs)}
    return {name: geometric_mean(run[key] for run in runs) for name, key in shared.items()}
