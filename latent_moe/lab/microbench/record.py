"""Recordings of the workload: one folder, one subfolder a tail, one file a rank, a manifest that says what they are."""

import shutil
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import torch

from latent_moe import platform
from latent_moe.errors import InputError
from latent_moe.lab.microbench import rocprof, roctx_control
from latent_moe.lab.microbench.workload import Workload, under_torch
from latent_moe.lab.recordings import Manifest, write_manifest
from latent_moe.parallel import launch

PROFILERS = ("rocprofv3", "torch")
RECORDINGS = Path("runs") / "recordings"


def default_profiler() -> str:
    """rocprofv3 on a ROCm machine that has it with roctx, torch.profiler elsewhere."""
    rocm = platform.describe().kind == "rocm"
    return "rocprofv3" if rocm and shutil.which("rocprofv3") and roctx_control.is_there() else "torch"


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
        raise InputError(f"profiler {profiler!r} is none of {', '.join(PROFILERS)}")
    folder = _folder(out)
    notes = (
        _rocprofv3(work, folder, timeout_s) if profiler == "rocprofv3" else _torch(work, folder, timeout_s)
    )
    write_manifest(folder, _manifest(work, folder, profiler, notes))
    return folder


def _folder(out: str | Path | None) -> Path:
    folder = Path(out) if out else RECORDINGS / datetime.now().strftime("%Y%m%d-%H%M%S-%f")
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise InputError(f"{folder}: a recording needs a folder that is new or empty")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _torch(work: Workload, folder: Path, timeout_s: float) -> list[str]:
    launch(under_torch, work.tp, work, str(folder), timeout_s=timeout_s)
    return []


def _rocprofv3(work: Workload, folder: Path, timeout_s: float) -> list[str]:
    if not roctx_control.is_there():
        raise InputError("rocprofv3 needs roctx to leave the warm-up out (rocprofiler-sdk's Python packages)")
    notes = []
    for tail in work.tails:
        databases = rocprof.record(replace(work, tails=(tail,)), folder / tail, timeout_s)
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
    found = {"torch": machine.torch_version, "vllm": machine.vllm_version}
    found |= {"cuda": torch.version.cuda, "rocm": torch.version.hip, "driver": _driver(machine.kind)}
    return {name: str(version) for name, version in found.items() if version}


def _driver(kind: str) -> str | None:
    """The kernel driver's version as it tells it; None where there is none."""
    places = {"rocm": "/sys/module/amdgpu/version", "cuda": "/sys/module/nvidia/version"}
    try:
        return Path(places[kind]).read_text(encoding="ascii").strip()
    except (KeyError, OSError):
        return None
