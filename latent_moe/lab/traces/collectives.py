"""What collectives cost beyond their sum: how much of them GEMMs hide, and how much is waiting for a late rank."""

from dataclasses import dataclass

import numpy as np

from latent_moe.lab.traces.metrics import DEVICE, placed, union_ns
from latent_moe.lab.traces.table import Kernels, group_codes


@dataclass(frozen=True)
class Collectives:
    """All times are summed over the devices. exposed_ns is the part in which the device ran nothing else. wait_ns and transfer_ns are None unless several ranks issued the same
    number of collectives on one clock: then a collective's wait lasts until its last rank has begun."""

    calls: int
    total_ns: int
    overlap_with_gemm_ns: int
    exposed_ns: int
    wait_ns: int | None = None
    transfer_ns: int | None = None


def collectives(kernels: Kernels) -> Collectives:
    """Read the collectives of a kernel table with kinds."""
    usable = placed(kernels)
    mine, gemm = (usable & _is(kernels, kind) for kind in ("collective", "gemm"))
    devices = group_codes(kernels, DEVICE)
    rows = [np.flatnonzero(mine & (devices == device)) for device in np.unique(devices[mine])]
    overlap = sum(_overlap(kernels, r, np.flatnonzero(gemm & (devices == devices[r[0]]))) for r in rows)
    others = usable & ~mine
    hidden = sum(_overlap(kernels, r, np.flatnonzero(others & (devices == devices[r[0]]))) for r in rows)
    exposed = sum(union_ns(kernels["start_ns"][r], kernels["end_ns"][r]) for r in rows) - hidden
    total = int(kernels["dur_ns"][mine].sum())
    wait = _wait_ns(kernels, rows)
    transfer = None if wait is None else total - wait
    return Collectives(int(np.count_nonzero(mine)), total, overlap, exposed, wait, transfer)


def _is(kernels: Kernels, kind: str) -> np.ndarray:
    column = kernels["kind"]
    return column.codes == (column.values.index(kind) if kind in column.values else -2)


def _overlap(kernels: Kernels, one: np.ndarray, other: np.ndarray) -> int:
    """Time in which a kernel of `one` and a kernel of `other` both ran: |A| + |B| - |A or B|."""
    start, end = kernels["start_ns"], kernels["end_ns"]
    both = np.concatenate([one, other])
    return (
        union_ns(start[one], end[one]) + union_ns(start[other], end[other]) - union_ns(start[both], end[both])
    )


def _wait_ns(kernels: Kernels, rows: list[np.ndarray]) -> int | None:
    """Collective i is the i-th on every rank; each rank waits in it until the last has begun, at most to its end.

    A clock that the ranks do not share would show: then a collective ends on one rank before it begins on another.
    """
    if len(rows) < 2 or len({len(r) for r in rows}) > 1:
        return None
    start, end = (np.stack([np.sort(kernels[name][r]) for r in rows]) for name in ("start_ns", "end_ns"))
    last = start.max(axis=0)
    if (end.min(axis=0) < last).any():
        return None
    return int((last - start).sum())
