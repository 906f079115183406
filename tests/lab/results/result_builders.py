"""Result files as the client and `bench` write them, with figures of our own."""

import json
from pathlib import Path

CLIENT = {
    "date": "20260301-120000",
    "backend": "vllm",
    "label": None,
    "model_id": "acme/toy",
    "num_prompts": 32,
    "request_rate": "inf",
    "max_concurrency": 4,
    "duration": 16.0,
    "completed": 32,
    "failed": 0,
    "total_input_tokens": 8192,
    "total_output_tokens": 2048,
    "request_throughput": 2.0,
    "output_throughput": 128.0,
    "total_token_throughput": 640.0,
    "mean_ttft_ms": 400.0,
    "median_ttft_ms": 395.0,
    "mean_tpot_ms": 25.4,
    "median_tpot_ms": 25.3,
    "mean_itl_ms": 25.4,
    "median_itl_ms": 25.2,
}
OURS = {
    "schema": 1,
    "concurrency": 4,
    "isl": 256,
    "osl": 64,
    "tail": None,
    "cold": False,
    "prefix_caching": False,
    "device": "CPU, 2 cores",
    "recipe": "cpu_demo",
}


def scaled(factor: float, **changes) -> dict:
    """The client's result of a server `factor` times as fast."""
    faster = {
        name: CLIENT[name] * factor
        for name in ("request_throughput", "output_throughput", "total_token_throughput")
    }
    slower = {name: CLIENT[name] / factor for name in CLIENT if name.endswith("_ms")}
    return CLIENT | faster | slower | {"duration": CLIENT["duration"] / factor} | changes


def bench_run(arm: str, pair: int, factor: float = 1.0, ours: dict | None = None, **changes) -> dict:
    """One run as `bench` writes it: own boot, seed by pair, arms in A B B A order."""
    order = 2 * (pair - 1) + ((arm == "candidate") == (pair % 2 == 1))
    mine = {"arm": arm, "role": arm, "pair": pair, "order": order, "boot": f"b{order}", "seed": 100 + pair}
    mine["started"] = f"2026-03-01T12:{order:02d}:00+00:00"
    return scaled(factor, **changes) | {"latent_moe": OURS | mine | (ours or {})}


def write_bench(out: Path, runs: list[dict]) -> Path:
    """A folder as `bench --out` leaves it."""
    (out / "runs").mkdir(parents=True, exist_ok=True)
    for run in runs:
        ours = run["latent_moe"]
        name = f"{ours['arm']}_pair{ours['pair']}_c{ours['concurrency']}.json"
        (out / "runs" / name).write_text(json.dumps(run), encoding="utf-8")
    return out
