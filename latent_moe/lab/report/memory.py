"""The peak memory of this process and everything below it, sampled while a tour runs."""

import os
import threading

import psutil

INTERVAL_S = 2.0


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
            if self._over.wait(INTERVAL_S):
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
