"""Running the workload under rocprofv3: its command line, roctx's resume and pause, and `rocpd convert` afterwards.

Options are those of ROCm's documentation of rocprofv3 (rocprofiler-sdk 1.1 and later, ROCm 7.x). What lies between
resume and pause is all that rocprofv3 --selected-regions records.
"""

import os
import shutil
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from latent_moe.errors import InputError, LatentMoEError

_TAIL_LINES = 6


def command(rocprofv3: str, workload_json: str, folder: Path) -> list[str]:
    """The command line that records the workload into folder/<pid>_results.db, one file a rank, no host name in the path."""
    options = ["--kernel-trace", "--marker-trace", "--selected-regions", "--output-format", "rocpd"]
    where = ["--output-directory", str(folder), "--output-file", "%pid%"]
    return [
        rocprofv3,
        *options,
        *where,
        "--",
        sys.executable,
        "-m",
        "latent_moe.lab.microbench.workload",
        workload_json,
    ]


def executable() -> str:
    """rocprofv3's path. Raises InputError where it is not installed."""
    found = shutil.which("rocprofv3")
    if found is None:
        raise InputError(
            "rocprofv3 is not on the PATH (it comes with ROCm); --profiler torch records without it"
        )
    return found


def record(workload_json: str, folder: Path, timeout_s: float) -> list[Path]:
    """Run rocprofv3; returns the databases it wrote. Raises LatentMoEError when it fails, hangs or writes none."""
    folder.mkdir(parents=True, exist_ok=True)
    _run(command(executable(), workload_json, folder), timeout_s)
    written = sorted(folder.rglob("*.db"))
    if not written:
        raise LatentMoEError(f"rocprofv3 ended well but wrote no database into {folder}")
    return written


def convert(databases: list[Path], folder: Path, timeout_s: float) -> str | None:
    """CSV beside the databases by `rocpd convert`; returns why not, None when it was done."""
    start = _converter()
    if start is None:
        return "rocpd is not installed: no CSV beside the databases"
    inputs = [str(path) for path in databases]
    where = ["--output-format", "csv", "--output-path", str(folder / "csv")]
    try:
        _run([*start, "convert", "--input", *inputs, *where], timeout_s)
    except LatentMoEError as error:
        return f"rocpd convert failed: {error}"
    return None


def _converter() -> list[str] | None:
    found = shutil.which("rocpd")
    if found:
        return [found]
    return [sys.executable, "-m", "rocpd"] if find_spec("rocpd") is not None else None


def _run(words: list[str], timeout_s: float) -> None:
    """Run to the end, in a process group of its own, so that nothing outlives a time-out or an interruption."""
    process = subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout_s)
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            raise LatentMoEError(f"{Path(words[0]).name} was ended after {timeout_s:g} s") from None
        raise
    if process.returncode:
        last = " / ".join(output.strip().splitlines()[-_TAIL_LINES:])
        raise LatentMoEError(f"{Path(words[0]).name} failed with exit code {process.returncode}: {last}")


_ALL_THREADS = 0
NO_ROCTX = "rocprofv3 needs roctx to leave the warm-up out (rocprofiler-sdk's Python packages)"


def has_roctx() -> bool:
    """Can this interpreter resume and pause rocprofv3?"""
    return find_spec("roctx") is not None or _has_bindings()


def resume() -> None:
    """Start recording. Raises InputError without roctx."""
    _call("profilerResume", "roctxProfilerResume")


def pause() -> None:
    """Stop recording. Raises InputError without roctx."""
    _call("profilerPause", "roctxProfilerPause")


def _call(package_name: str, binding_name: str) -> None:
    if find_spec("roctx") is not None:
        import roctx  # type: ignore[import-not-found]

        getattr(roctx, package_name)(_ALL_THREADS)
    elif _has_bindings():
        from rocm.bindings import roctx as bindings  # type: ignore[import-not-found]

        getattr(bindings, binding_name)(_ALL_THREADS)
    else:
        raise InputError(NO_ROCTX)


def _has_bindings() -> bool:
    return find_spec("rocm") is not None and find_spec("rocm.bindings") is not None
