"""Benchmark result files as table rows: the runs/*.json of a recording made by `latent-moe bench`."""

import json
from collections.abc import Iterable
from pathlib import Path
from statistics import geometric_mean

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


def is_recording(path: str | Path) -> bool:
    """Whether `path` is a folder with runs/*.json."""
    return any(Path(path).glob("runs/*.json"))


def read(path: str | Path) -> list[Row]:
    """One row per arm (by name) and concurrency: the geometric mean over its warm runs, which is what `latent-moe table`
    shows.

    Raises InputError naming the file that cannot be used.
    """
    groups: dict[tuple, list[dict]] = {}
    for run in _warm(path):
        about = run["latent_moe"]
        key = (about["isl"], about["osl"], about["concurrency"], about["arm"])
        groups.setdefault(key, []).append(run)
    return [Row(isl, osl, conc, arm, _means(runs)) for (isl, osl, conc, arm), runs in sorted(groups.items())]


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
        about = run["latent_moe"]
        for name in ("role", "arm", "isl", "osl", "concurrency"):
            about[name]
        for name in ("total_token_throughput", "mean_ttft_ms", "mean_tpot_ms"):
            if not run[name] > 0:
                raise InputError(f"{file}: {name} must be positive")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{file}: not a benchmark result ({error!r})") from error
    return run


def _means(runs: Iterable[dict]) -> dict[str, float]:
    runs = list(runs)
    shared = {name: key for name, key in METRICS.items() if all(run.get(key) for run in runs)}
    return {name: geometric_mean(run[key] for run in runs) for name, key in shared.items()}
