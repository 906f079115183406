"""Running the workload under rocprofv3, and `rocpd convert` afterwards where it is installed.

Options are those of ROCm's documentation of rocprofv3 (rocprofiler-sdk 1.1 and later, ROCm 7.x).
"""

import os
import shutil
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from latent_moe.errors import InputError, LatentMoEError
from latent_moe.lab.microbench.workload import Workload, as_json

_TAIL_LINES = 6


def command(rocprofv3: str, work: Workload, folder: Path) -> list[str]:
    """The command line that records `work` into folder/<pid>_results.db, one file a rank, no host name in the path."""
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
        as_json(work),
    ]


def executable() -> str:
    """rocprofv3's path. Raises InputError where it is not installed."""
    found = shutil.which("rocprofv3")
    if found is None:
        raise InputError(
            "rocprofv3 is not on the PATH (it comes with ROCm); --profiler torch records without it"
        )
    return found


def record(work: Workload, folder: Path, timeout_s: float) -> list[Path]:
    """Run rocprofv3; returns the databases it wrote. Raises LatentMoEError when it fails, hangs or writes none."""
    folder.mkdir(parents=True, exist_ok=True)
    _run(command(executable(), work, folder), timeout_s)
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
