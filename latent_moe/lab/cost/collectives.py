"""Time of the tail's collectives: latency + bytes over link bandwidth, by algorithm.

tp ranks, n bytes in each rank's full buffer. One-shot: every rank reads every peer's whole buffer. Two-shot: a
reduce-scatter and an all-gather, each moving (tp - 1)/tp of the buffer, with a latency each. The cheaper one counts.
"""

from latent_moe.errors import InputError
from latent_moe.lab.cost.hardware import Hardware


def all_reduce_us(n_bytes: float, tp: int, hardware: Hardware) -> float:
    """All-reduce of an n-byte buffer: the cheaper of one-shot and two-shot."""
    one_shot = hardware.collective_latency_us + (tp - 1) * n_bytes / _rate(tp, hardware)
    two_shot = 2 * reduce_scatter_us(n_bytes, tp, hardware)
    return min(one_shot, two_shot) if tp > 1 else 0.0


def reduce_scatter_us(n_bytes: float, tp: int, hardware: Hardware) -> float:
    """Reduce-scatter of an n-byte buffer to n/tp bytes a rank."""
    if tp == 1:
        return 0.0
    return hardware.collective_latency_us + (tp - 1) / tp * n_bytes / _rate(tp, hardware)


def all_gather_us(n_bytes: float, tp: int, hardware: Hardware) -> float:
    """All-gather to an n-byte buffer from n/tp bytes a rank: moves what a reduce-scatter moves."""
    return reduce_scatter_us(n_bytes, tp, hardware)


def _rate(tp: int, hardware: Hardware) -> float:
    if tp < 1:
        raise InputError(f"tp {tp} is not a positive number of ranks")
    return hardware.link_bytes_per_us(max(tp, 2))
