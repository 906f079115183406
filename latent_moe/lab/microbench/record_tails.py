"""Writing a recording of tails: manifest.json, tails.csv, checks.csv and one trimmed trace per tail."""

import csv
import gzip
import sys
from datetime import date
from pathlib import Path
from typing import Any

import torch

from latent_moe import platform
from latent_moe.lab.microbench.inputs import make_inputs
from latent_moe.lab.microbench.sweep import Sweep, refused
from latent_moe.lab.microbench.workload import line_up, region_name
from latent_moe.lab.recordings import Manifest, write_manifest
from latent_moe.parallel import VLLM, TensorParallel
from latent_moe.tail_variants.registry import TAILS, known_tail

TRACE_LIMIT_BYTES = 500_000
TRACE_STEPS = 3
WITH_HANDLES = (
    "Collectives without a handle go through vLLM's communicator, as in a server; those with one ({}) through "
    "torch.distributed, as vLLM has none."
)


def write_recording(
    folder: Path, found: dict[str, Any], sweep: Sweep, tp: int, machine: platform.Platform
) -> Path:
    """tails.csv, checks.csv, skipped.csv (those that have rows) and the manifest; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {}
    named = {variant for variant, _, _ in sweep.options}
    found = {
        **found,
        "rows": [row for row in found["rows"] if row["tail"] not in named],
        "variants": [row for row in found["rows"] if row["tail"] in named],
    }
    for name, about in (
        ("rows", "median, p10 and p90 of each tail, us"),
        ("variants", "the same for other numbers of chunks"),
        ("checks", "norm2(out - ref)/norm2(ref) against float64, the worst rank"),
        ("skipped", "what was not timed, and why"),
    ):
        file = "tails.csv" if name == "rows" else f"{name}.csv"
        if found[name]:
            _write_csv(folder / file, found[name])
            files[file] = about
    for trace in (folder / f"trace_{tail}.json.gz" for tail in sorted(sweep.tails)):
        if trace.is_file():
            files[trace.name] = f"torch.profiler, {TRACE_STEPS} steps at two T, rank 0"
    write_manifest(folder, _manifest(folder.name, files, sweep, tp, machine))
    return folder


def _write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def _manifest(name: str, files, sweep: Sweep, tp: int, machine: platform.Platform) -> Manifest:
    what = (
        f"compute only, the shapes of TP = {sweep.shapes_of}"
        if sweep.shapes_of
        else f"whole tails, TP = {tp}"
    )
    count = 1 if sweep.shapes_of or machine.kind == "cpu" else tp
    return Manifest(
        name=name,
        kind="measured",
        title=f"Tails of a latent MoE layer: {what}",
        device=f"{count} x {machine.device_name}",
        date=date.today().isoformat(),
        command="latent-moe " + " ".join(_public(sys.argv[1:])),
        software=_software(machine, sweep),
        notes=_with_handles() if sweep.communicator == VLLM else "",
        files=files,
        parameters={
            "tp": sweep.shapes_of or tp,
            "collectives": not sweep.shapes_of,
            **sweep.described(),
            "tokens": list(sweep.tokens),
            "tails": list(sweep.tails),
            "modes": list(sweep.modes),
            "variants": {name: dict(options, tail=tail) for name, tail, options in sweep.options},
        },
    )


def _with_handles() -> str:
    return WITH_HANDLES.format(", ".join(name for name, tail in TAILS.items() if tail.waits))


def _public(arguments: list[str]) -> list[str]:
    """The command as a reader would type it: folders by their name."""
    return [Path(word).name if word.startswith("/") else word for word in arguments]


def _software(machine: platform.Platform, sweep: Sweep) -> dict[str, str]:
    found = {"torch": machine.torch_version}
    if sweep.communicator == VLLM:
        found["vllm"] = machine.vllm_version or "unknown"
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    if torch.version.hip:
        found["rocm"] = torch.version.hip
    try:
        import triton

        found["triton"] = triton.__version__
    except ImportError:
        pass
    return found


def record_traces(tp: TensorParallel, sweep: Sweep, folder: Path, tokens: tuple[int, ...]) -> None:
    """One torch.profiler trace per tail with a few steps at each of `tokens`; rank 0 writes trace_<tail>.json.gz."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in sweep.tails:
        tail = known_tail(name)
        runs = [_steps(tail, sweep, t, tp) for t in tokens if not refused(tail, sweep, tp, t)]
        if runs:
            _trace(runs, folder / f"trace_{name}.json.gz", tp)


def _steps(tail, sweep: Sweep, tokens: int, tp: TensorParallel):
    inputs = make_inputs(tail, sweep.config, tokens, tp, getattr(torch, sweep.dtype))

    def steps() -> None:
        for step in range(TRACE_STEPS):
            index = step % len(inputs.routed)
            with platform.profiler_range(region_name(tail, sweep.config, tokens, tp.size, step)):
                tail.function(
                    inputs.routed[index], inputs.shared[index], inputs.weights[index], inputs.norm, tp
                )
        platform.synchronize()

    steps()
    inputs.restore()
    return steps


def _trace(runs, path: Path, tp: TensorParallel) -> None:
    activities = [torch.profiler.ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities, record_shapes=True, acc_events=True) as profiler:
        for steps in runs:
            # Profilers do not start alike: a first collective would show the slowest one's start.
            line_up(tp)
            steps()
    if tp.rank:
        return
    plain = path.with_suffix("")
    profiler.export_chrome_trace(str(plain))
    path.write_bytes(gzip.compress(plain.read_bytes(), 9, mtime=0))
    plain.unlink()
