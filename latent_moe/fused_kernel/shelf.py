"""What kernels keep from one launch to the next, so that no two launches that may run at once ever share it.

A launch takes what it keeps off the shelf and puts it back when it has been issued. What lies there belongs to one
stream, and during a graph's capture to that capture too: launches on one stream follow each other, branches and graphs
may not. A launch that fails puts nothing back, so that nothing half written is met again.
"""

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import torch

Kept = TypeVar("Kept")
_idle: dict[tuple, Any] = {}


def place(device: torch.device) -> tuple[int, int]:
    """(stream, capture) that a launch on `device` would belong to now; capture 0: none. On a CPU all is one place."""
    if device.type != "cuda":
        return 0, 0
    stream = torch._C._cuda_getCurrentRawStream(device.index or 0)
    return stream, _capture(stream) if torch.cuda.is_current_stream_capturing() else 0


def take(key: tuple, make: Callable[[], Kept]) -> Kept:
    """What lies on the shelf under `key` (which begins with a `place`), or what `make` gives."""
    kept = _idle.pop(key, None)
    if kept is None:
        _forget_other_captures(key[0][1])
        kept = make()
    return kept


def put_back(key: tuple, kept: object) -> None:
    """Leave it for the next launch of the same place."""
    _idle[key] = kept


def claim(
    kept: dict[tuple, Kept | None], place: tuple[int, int], use: tuple, make: Callable[[], Kept | None]
) -> Kept | None:
    """What `kept` holds of `use` for this place; a capture takes over its stream's; `make` only outside captures."""
    stream, capture = place
    if (place, use) not in kept:
        if capture:
            kept[place, use] = kept.pop(((stream, 0), use), None)
        else:
            kept[place, use] = make()
    return kept[place, use]


def _forget_other_captures(capture: int) -> None:
    """Memory of another graph is that graph's: what it kept while it was captured is of no use to anyone else."""
    if capture:
        for key in [key for key in _idle if key[0][1] not in (0, capture)]:
            _idle.pop(key, None)


def _capture(stream: int) -> int:
    """The driver's number of the capture under way on `stream`."""
    status, number = ctypes.c_int(), ctypes.c_ulonglong()
    failed = _capture_info()(
        ctypes.c_void_p(stream), ctypes.byref(status), ctypes.byref(number), None, None, None
    )
    if failed:
        raise RuntimeError(f"the driver gave no number for the capture on stream {stream} (error {failed})")
    return number.value


@cache
def _capture_info():
    if torch.version.hip:
        return ctypes.CDLL("libamdhip64.so").hipStreamGetCaptureInfo_v2
    return ctypes.CDLL("libcuda.so.1").cuStreamGetCaptureInfo_v2
