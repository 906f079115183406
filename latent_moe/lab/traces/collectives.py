"""What collectives cost beyond their sum: how much of them GEMMs hide, and how much is waiting for a late rank."""

from dataclasses import dataclass

import numpy as np

from latent_moe.lab.traces.kernel_names import collective_type
from latent_moe.lab.traces.metrics import DEVICE, placed, ranks, union_ns
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
    ranks: list[dict] | None = None
    message_bytes: int | None = None
    bus_gb_per_s: float | None = None


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
    told = [_lateness(kernels, group) for group in _groups(kernels, mine)]
    known = [row for group in told if group is not None for row in group]
    # One group without an answer leaves the whole without one.
    whole = bool(told) and all(group is not None for group in told)
    wait = sum(row["wait_ns"] for row in known) if whole else None
    transfer = None if wait is None else total - wait
    size, bandwidth = _bus_bytes_per_ns(kernels, mine) if "message_bytes" in kernels.columns else (None, None)
    calls = int(np.count_nonzero(mine))
    return Collectives(calls, total, overlap, exposed, wait, transfer, known or None, size, bandwidth)


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


def _lateness(kernels: Kernels, rows: list[np.ndarray]) -> list[dict] | None:
    """Of the devices of one group: how long each waited in its collectives for the last one, and was waited for.

    Collective i is the i-th on every rank; each rank waits in it until the last has begun, at most to its end. None
    where counts differ or the ranks share no clock: then a collective ends on one rank before it begins on another.
    """
    if len(rows) < 2 or len({len(r) for r in rows}) > 1:
        return None
    order = [r[np.argsort(kernels["start_ns"][r], kind="stable")] for r in rows]
    start, end = (np.stack([kernels[name][r] for r in order]) for name in ("start_ns", "end_ns"))
    last = start.max(axis=0)
    if (end.min(axis=0) < last).any():
        return None
    behind = np.where(start == last, last - np.sort(start, axis=0)[-2], 0)
    names = ranks(kernels)
    return [
        {
            "rank": names.values[names.codes[r[0]]],
            "calls": len(r),
            "wait_ns": int((last - start[place]).sum()),
            # A rank is last only where the others had begun: ranks that begin together wait for nobody.
            "last_of": int((behind[place] > 0).sum()),
            "late_ns": int(behind[place].sum()),
        }
        for place, r in enumerate(order)
    ]


def _groups(kernels: Kernels, mine: np.ndarray) -> list[list[np.ndarray]]:
    """For each process group its devices' collectives; one group where nothing tells them apart."""
    devices, group = group_codes(kernels, DEVICE), kernels["group"].codes
    found = []
    for code in np.unique(group[mine]):
        inside = mine & (group == code)
        found.append([np.flatnonzero(inside & (devices == device)) for device in np.unique(devices[inside])])
    return found


def _bus_bytes_per_ns(kernels: Kernels, mine: np.ndarray) -> tuple[int | None, float | None]:
    """(bytes of the messages whose size is known, their bus bandwidth in bytes/ns, which is GB/s).

    An all-reduce of n ranks moves each byte 2(n - 1)/n times over the slowest link, other collectives (n - 1)/n times;
    the formula is NCCL's own tests' (doc/PERFORMANCE.md). Calls whose type or group is unknown are left out.
    """
    size, group, name = np.asarray(kernels["message_bytes"]), kernels["group"], kernels["name"]
    members = [text.count(",") + 1 for text in group.values]
    types = [collective_type(text) for text in name.values]
    factor = np.zeros(len(kernels))
    for code, count in enumerate(members):
        for place, kind in enumerate(types):
            if kind and count > 1:
                rows = (group.codes == code) & (name.codes == place)
                factor[rows] = (2 if kind == "all_reduce" else 1) * (count - 1) / count
    rows = mine & (size > 0) & (factor > 0)
    time_ns = int(kernels["dur_ns"][rows].sum())
    if not time_ns:
        return None, None
    return int(size[rows].sum()), float((size[rows] * factor[rows]).sum() / time_ns)
