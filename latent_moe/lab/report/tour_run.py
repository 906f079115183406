"""All notebooks one after another, a progress line each, then the report: runs/<stamp>/index.html and summary.json."""

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil

from latent_moe import platform
from latent_moe.errors import InputError, unknown
from latent_moe.files import write_json
from latent_moe.lab.report import pages
from latent_moe.lab.report.execute import Executed, execute, surroundings
from latent_moe.lab.report.throughput import served_arms

NOTEBOOKS = Path(__file__).resolve().parents[3] / "notebooks"
MEMORY_INTERVAL_S = 2.0
Notify = Callable[[str], None]


@dataclass(frozen=True)
class Tour:
    """What a tour did: `summary` is what stands in summary.json."""

    folder: Path
    ok: bool
    summary: dict[str, Any]


def run_tour(
    out: str | Path | None = None,
    only: Sequence[str] = (),
    notify: Notify = print,
    notebooks: Path = NOTEBOOKS,
    timeout_s: float = 480,
) -> Tour:
    """Run the notebooks whose names begin with one of `only` (none: all) and write the report into `out`.

    `out` defaults to runs/<stamp> below the checkout; it may not hold anything yet. A notebook that fails does not
    stop the others, and the report is written anyway. Raises InputError for a folder that cannot be used.
    """
    paths = _chosen(notebooks, only)
    folder = _prepared(
        Path(out) if out else notebooks.parent / "runs" / f"{datetime.now().astimezone():%Y%m%d-%H%M%S}"
    )
    started = time.monotonic()
    done: list[Executed] = []
    with surroundings(folder), PeakMemory() as memory:
        for number, path in enumerate(paths, 1):
            notify(f"[{number}/{len(paths)}] {path.stem} ...")
            done.append(execute(path, folder, timeout_s))
            notify(_progress(number, len(paths), done[-1], time.monotonic() - started))
    summary = _summary(done, folder, time.monotonic() - started, memory.peak_bytes)
    pages.write(folder, done, summary)
    write_json(folder / "summary.json", summary)
    return Tour(folder, all(one.ok for one in done), summary)


def _chosen(notebooks: Path, only: Sequence[str]) -> list[Path]:
    paths = sorted(notebooks.glob("[0-9][0-9]_*.ipynb"))
    if not paths:
        raise InputError(f"{notebooks}: no notebooks there; the tour runs from a checkout")
    chosen = [path for path in paths if not only or any(path.stem.startswith(name) for name in only)]
    for name in only:
        if not any(path.stem.startswith(name) for path in paths):
            raise unknown("notebook", name, [path.stem for path in paths])
    return chosen


def _prepared(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise InputError(f"{folder} is not empty: --out takes a new folder")
        probe = folder / ".probe"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise InputError(
            f"{folder}: cannot be written ({error.strerror}); --out names another folder"
        ) from None
    return folder.resolve()


def _progress(number: int, total: int, one: Executed, elapsed_s: float) -> str:
    minutes, seconds = divmod(int(elapsed_s), 60)
    how = "ok" if one.ok else f"FAILED: {one.error}"
    return (
        f"[{number}/{total}] {one.name}: {one.seconds:.1f} s, {how} ({minutes}:{seconds:02d} since the start)"
    )


def _summary(done: list[Executed], folder: Path, seconds: float, peak_bytes: int | None) -> dict[str, Any]:
    here = platform.describe()
    return {
        "notebooks": [
            {"name": one.name, "seconds": one.seconds, "ok": one.ok, "error": one.error} for one in done
        ],
        "index": str(folder / "index.html"),
        "seconds": round(seconds, 1),
        "peak_memory_bytes": peak_bytes,
        "date": datetime.now().astimezone().isoformat(timespec="seconds"),
        "platform": vars(here),
        "arms": served_arms(folder),
    }


class PeakMemory:
    """Context: `peak_bytes` is the largest sum seen, None where it could not be read.

    Pages that ranks share are counted once where the system tells (Linux's proportional set size).
    """

    def __init__(self):
        self.peak_bytes: int | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "PeakMemory":
        self._thread.start()
        return self

    def __exit__(self, *failure) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            found = _tree_bytes()
            self.peak_bytes = max(found, self.peak_bytes or 0) if found else self.peak_bytes
            if self._over.wait(MEMORY_INTERVAL_S):
                return


def _tree_bytes() -> int:
    here = psutil.Process(os.getpid())
    return sum(_bytes(process) for process in (here, *here.children(recursive=True)))


def _bytes(process: psutil.Process) -> int:
    try:
        full = process.memory_full_info()
        return getattr(full, "pss", 0) or full.rss
    except psutil.Error:
        # It ended since it was listed, or is not ours to look into.
        return 0
