"""Recordings: the workload under a profiler (a folder a tail, a file a rank), and times of tails with a trace each.

Both write a manifest that says what the files are.
"""

import csv
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from latent_moe import platform
from latent_moe.errors import InputError, unknown
from latent_moe.files import write_whole
from latent_moe.lab.job import place_of
from latent_moe.lab.microbench import rocprof
from latent_moe.lab.microbench.inputs import make_inputs
from latent_moe.lab.microbench.journal import PartialRecording, followed
from latent_moe.lab.microbench.sweep import Sweep, ranks_for, refused, run_sweep
from latent_moe.lab.microbench.workload import (
    Workload,
    as_json,
    files_of_rank,
    line_up,
    region_name,
    traced,
    under_torch,
)
from latent_moe.lab.recordings import Manifest, write_manifest
from latent_moe.parallel import VLLM, TensorParallel, in_job, launch
from latent_moe.tail_variants.registry import TAILS, known_tail

PROFILERS = ("rocprofv3", "torch")
RECORDINGS = Path("runs") / "recordings"
TRACE_STEPS = 3
WITH_HANDLES = (
    "Collectives without a handle go through vLLM's communicator, as in a server; those with one ({}) through "
    "torch.distributed, as vLLM has none."
)


def default_profiler() -> str:
    """rocprofv3 on a ROCm machine that has it with roctx, torch.profiler elsewhere."""
    # rocprofv3 has to start the ranks itself.
    rocm = platform.describe().kind == "rocm" and not in_job()
    return "rocprofv3" if rocm and shutil.which("rocprofv3") and rocprof.has_roctx() else "torch"


def record(
    work: Workload, out: str | Path | None = None, profiler: str | None = None, timeout_s: float = 900
) -> Path:
    """Record the workload; returns the folder: <tail>/<one file a rank>, manifest.json.

    `out` is new or empty (default: runs/recordings/<time>). Raises InputError for a workload, profiler or folder that
    cannot be used; LatentMoEError when a rank or the profiler fails.
    """
    work.check()
    profiler = profiler or default_profiler()
    if profiler not in PROFILERS:
        raise unknown("profiler", profiler, PROFILERS)
    folder = _folder(out)
    notes: list[str] = []
    if profiler == "rocprofv3":
        notes = _rocprofv3(work, folder, timeout_s)
    else:
        launch(under_torch, work.tp, work, str(folder), timeout_s=timeout_s)
    hosts = _bring_together(work, folder) if in_job() else []
    manifest = _manifest(work, folder, profiler, notes)
    write_manifest(
        folder, replace(manifest, parameters=manifest.parameters | {"hosts": hosts}) if hosts else manifest
    )
    return folder


def _bring_together(work: Workload, folder: Path) -> list[str]:
    """What ranks on other hosts recorded, into this host's folder; returns each rank's host."""
    ranks = launch(files_of_rank, work.tp, str(folder))
    for name, content in (item for _, files in ranks for item in files.items()):
        if not (folder / name).exists():
            write_whole(folder / name, content)
    return [host for host, _ in ranks]


def _folder(out: str | Path | None) -> Path:
    folder = Path(out) if out else RECORDINGS / datetime.now().astimezone().strftime("%Y%m%d-%H%M%S-%f")
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise InputError(f"{folder}: a recording needs a folder that is new or empty")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _rocprofv3(work: Workload, folder: Path, timeout_s: float) -> list[str]:
    if in_job():
        raise InputError(
            "rocprofv3 starts its ranks itself: in a job of torchrun or srun take --profiler torch"
        )
    if not rocprof.has_roctx():
        raise InputError(rocprof.NO_ROCTX)
    notes = []
    for tail in work.tails:
        databases = rocprof.record(as_json(replace(work, tails=(tail,))), folder / tail, timeout_s)
        note = rocprof.convert(databases, folder / tail, timeout_s)
        notes += [note] if note and note not in notes else []
    return notes


def _manifest(work: Workload, folder: Path, profiler: str, notes: list[str]) -> Manifest:
    machine = platform.describe()
    count = 1 if machine.kind == "cpu" else work.tp
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    return Manifest(
        name=folder.name,
        kind="measured",
        title=f"Tails {', '.join(work.tails)} under {profiler}, TP = {work.tp}",
        device=f"{count} x {machine.device_name}",
        date=datetime.now().astimezone().isoformat(timespec="seconds"),
        command=_command(work, profiler),
        software=_software(machine),
        files={name: f"{profiler} trace of tail {name.split('/')[0]}" for name in files},
        parameters={
            **{"profiler": profiler, "tp": work.tp, "tails": list(work.tails), "tokens": list(work.tokens)},
            **{"steps": work.steps, "warm_up": work.warm_up, "preset": work.preset, "dtype": work.dtype},
        },
        notes="; ".join(notes),
    )


def _command(work: Workload, profiler: str) -> str:
    tokens = " ".join(map(str, work.tokens))
    sizes = f"--tp {work.tp} --preset {work.preset} --dtype {work.dtype} --steps {work.steps} --warm-up {work.warm_up}"
    return f"latent-moe profile --tail {' '.join(work.tails)} --tokens {tokens} {sizes} --profiler {profiler}"


def _software(machine: platform.Platform) -> dict[str, str]:
    """What the times depend on, by name; what is not installed is left out."""
    versions = {
        "torch": machine.torch_version,
        "vllm": machine.vllm_version,
        "triton": _triton_version(),
        "cuda": torch.version.cuda,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if torch.version.cuda else None,
        "rocm": torch.version.hip,
        "driver": _driver(machine.kind),
    }
    return {name: str(version) for name, version in versions.items() if version}


def _triton_version() -> str | None:
    try:
        return metadata.version("triton")
    except metadata.PackageNotFoundError:
        return None


def _driver(kind: str) -> str | None:
    """The kernel driver's version as it tells it; None where there is none."""
    places = {"rocm": "/sys/module/amdgpu/version", "cuda": "/sys/module/nvidia/version"}
    try:
        return Path(places[kind]).read_text(encoding="ascii").strip()
    except (KeyError, OSError):
        return None


def write_recording(
    folder: Path,
    found: dict[str, Any],
    sweep: Sweep,
    tp: int,
    machine: platform.Platform,
    partial: PartialRecording | None = None,
) -> Path:
    """tails.csv, checks.csv, skipped.csv (those that have rows) and the manifest; returns the folder.

    `partial`: the sweep did not end; the manifest says how far it came.
    """
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
    manifest = _times_manifest(folder.name, files, sweep, tp, machine)
    write_manifest(folder, _marked(manifest, partial, sweep) if partial else manifest)
    return folder


def _write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def _nodes() -> dict[str, int]:
    """Over how many hosts, where a job's ranks are timed: `auto` takes times of as many only."""
    place = place_of() if in_job() else None
    return {} if place is None else {"nodes": place.nodes}


def _times_manifest(name: str, files, sweep: Sweep, tp: int, machine: platform.Platform) -> Manifest:
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
        date=datetime.now().astimezone().date().isoformat(),
        command="latent-moe " + " ".join(_public(sys.argv[1:])),
        software=_software(machine),
        notes=_with_handles() if sweep.communicator == VLLM else "",
        files=files,
        parameters={
            "tp": sweep.shapes_of or tp,
            "collectives": not sweep.shapes_of,
            **_nodes(),
            **sweep.described(),
            "tokens": list(sweep.tokens),
            "tails": list(sweep.tails),
            "modes": list(sweep.modes),
            "variants": {name: dict(options, tail=tail) for name, tail, options in sweep.options},
        },
    )


def _marked(manifest: Manifest, partial: PartialRecording, sweep: Sweep) -> Manifest:
    fewest, most = partial.fewest_and_most
    note = (
        f"INTERRUPTED in round {partial.begun} of {partial.rounds}: rows have {fewest} to {most} of {sweep.samples} samples, "
        "errors are rank 0's."
    )
    parameters = {**manifest.parameters, "complete": False}
    return replace(manifest, notes=f"{note} {manifest.notes}".strip(), parameters=parameters)


def _with_handles() -> str:
    return WITH_HANDLES.format(", ".join(name for name, tail in TAILS.items() if tail.waits))


def _public(arguments: list[str]) -> list[str]:
    """The command as a reader would type it: folders by their name."""
    return [Path(word).name if word.startswith("/") else word for word in arguments]


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
    with traced(path, keep=tp.rank == 0, level=9):
        for steps in runs:
            # Profilers do not start alike: a first collective would show the slowest one's start.
            line_up(tp)
            steps()


def time_tails(
    sweep: Sweep,
    tp: int,
    machine: platform.Platform,
    folder: Path | None = None,
    timeout_s: float = 900,
    show: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Launch the ranks and time; `show` gets each row as it is done, `folder` a recording.

    Returns rows, skipped and checks. Interrupted or failed, the recording holds what was done and says so; the
    exception goes on. Raises LatentMoEError when a rank fails or time runs out.
    """
    with TemporaryDirectory(prefix="latent_moe_tails_") as scratch:
        journal = Path(scratch) / "journal.jsonl"
        try:
            with followed(journal, show) as progress:
                answers = launch(measure, tp, sweep, folder, journal, timeout_s=timeout_s)
        except BaseException:
            if folder and progress.samples_us:
                write_recording(folder, progress.found(), sweep, tp, machine, progress)
            raise
    measured = worst_of_ranks(answers)
    if folder:
        write_recording(folder, measured, sweep, tp, machine)
    return measured


def measure(
    tp: TensorParallel, sweep: Sweep, folder: Path | None, journal: Path | None = None
) -> dict[str, Any]:
    """On every rank: what run_sweep gives, and a trace of each tail below `folder` where one is given."""
    with ranks_for(tp, sweep) as ranks:
        measured = run_sweep(ranks, sweep, journal)
        if folder:
            small, large = min(sweep.tokens, key=lambda t: abs(t - 16)), max(sweep.tokens)
            record_traces(ranks, sweep, folder, tuple(sorted({small, min(large, 4096)})))
        return measured


def worst_of_ranks(answers: list[dict[str, Any]]) -> dict[str, Any]:
    """Rank 0's rows (each already the slowest rank's), the worst rank's errors."""
    checks = [
        max(same, key=lambda check: check["max_rel_err"])
        for same in zip(*(answer["checks"] for answer in answers), strict=True)
    ]
    return {**answers[0], "checks": checks}
