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


def is_recording(path: str | Path) -> bool:
    """Whether `path` is a folder with runs/*.json."""
    return any(Path(path).glob("runs/*.json"))


def read(path: str | Path) -> list[Row]:
    """One row per arm's role (baseline, candidate) and concurrency: the geometric mean over its warm runs, which is what
    `latent-moe table` shows.

    Raises InputError naming the file that cannot be used.
    """
    groups: dict[tuple, list[dict]] = {}
    for file in sorted(Path(path).glob("runs/*.json")):
        run = _load(file)
        about = run["latent_moe"]
        if about["role"] in ("baseline", "candidate") and not about.get("cold"):
            key = (about["isl"], about["osl"], about["concurrency"], about["role"])
            groups.setdefault(key, []).append(run)
    if not groups:
        raise InputError(f"{path}: no warm baseline or candidate runs under runs/")
    return [
        Row(isl, osl, conc, role, _means(runs)) for (isl, osl, conc, role), runs in sorted(groups.items())
    ]


def _load(file: Path) -> dict:
    try:
        run = json.loads(file.read_text(encoding="utf-8"))
        about = run["latent_moe"]
        for name in ("role", "isl", "osl", "concurrency"):
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
