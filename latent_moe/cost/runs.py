"""Benchmark result files as table rows: the runs/*.json of a recording made by `latent-moe bench`."""

import json
from collections.abc import Iterable
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from latent_moe.cost.table import Row
from latent_moe.errors import InputError

# vLLM's benchmark client calls the table's metrics so.
METRICS = {
    "total_tok_per_s": "total_token_throughput",
    "req_per_s": "request_throughput",
    "output_tok_per_s": "output_throughput",
    "mean_ttft_ms": "mean_ttft_ms",
    "mean_tpot_ms": "mean_tpot_ms",
    "mean_itl_ms": "mean_itl_ms",
}

ROLES = ("baseline", "candidate")
KEYS = ("isl", "osl", "concurrency")
NEEDED = ("total_token_throughput", "mean_ttft_ms", "mean_tpot_ms")
IMPOSSIBLE = 1e15  # in any of these units
LENGTHS_DIFFER = 0.01  # of the tokens asked for


def is_recording(path: str | Path) -> bool:
    """Whether `path` is a folder with runs/*.json."""
    return any(Path(path).glob("runs/*.json"))


def read(path: str | Path) -> list[Row]:
    """One row per arm (by name) and concurrency: the geometric mean over its warm runs, which is what `latent-moe table`
    shows. Rows that cannot be compared (`left_out`) are not among them.

    Raises InputError naming the file that cannot be used.
    """
    groups, bad = _groups(path), left_out(path)
    return [Row(*key, _means(runs)) for key, runs in groups.items() if key not in bad]


def left_out(path: str | Path) -> dict[tuple[int, int, int, str], str]:
    """{(isl, osl, concurrency, arm): why} of rows with failed requests or answers of other lengths than asked for.

    Where that is the baseline's row, the candidates' rows of its cell are left out with it.
    """
    groups = _groups(path)
    why = {key: found for key, runs in groups.items() if (found := _not_whole(runs))}
    of_baseline = {key[:3]: text for key, text in why.items() if key[3] in arms(path)["baseline"]}
    return {
        key: why.get(key) or of_baseline[key[:3]] for key in groups if key in why or key[:3] in of_baseline
    }


def _groups(path: str | Path) -> dict[tuple[int, int, int, str], list[dict]]:
    groups: dict[tuple[int, int, int, str], list[dict]] = {}
    for run in _warm(path):
        about = run["latent_moe"]
        key = (about["isl"], about["osl"], about["concurrency"], about["arm"])
        groups.setdefault(key, []).append(run)
    return dict(sorted(groups.items()))


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


def arms(path: str | Path) -> dict[str, list[str]]:
    """{"baseline": its arm, "candidate": every one's name}, sorted."""
    found: dict[str, set[str]] = {role: set() for role in ROLES}
    for run in _warm(path):
        found[run["latent_moe"]["role"]].add(run["latent_moe"]["arm"])
    return {role: sorted(names) for role, names in found.items()}


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
