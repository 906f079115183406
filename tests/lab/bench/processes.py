"""Which processes a test left behind: found by a mark in their environment, wherever they went."""

import time
from pathlib import Path

MARK = "LATENT_MOE_TEST_MARK"


def survivors(mark: str) -> list[str]:
    """Command lines of the processes whose environment carries the mark."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


def wait_gone(mark: str, seconds: float = 40) -> list[str]:
    """The processes that are still there after at most `seconds`."""
    deadline = time.monotonic() + seconds
    while survivors(mark) and time.monotonic() < deadline:
        time.sleep(0.1)
    return survivors(mark)
