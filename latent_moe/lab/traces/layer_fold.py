"""A model's layers in a recording that names none: from norm to norm, the same kinds of work again and again.

The queue with most kernels is cut in front of every norm. Each piece is called by the kind that says most of it:
attention, moe, gemm, else norm. The longest stretch in which these names repeat holds the layers; two of the same are a
coincidence, three are counted. Layers may differ in their kernels (sliding and full attention take turns).
"""

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from latent_moe.lab.traces.metrics import QUEUE, placed
from latent_moe.lab.traces.table import Coded, Kernels, group_codes

LONGEST_PERIOD = 32
FEWEST_LAYERS = 3
TELLING_KINDS = ("attention", "moe", "gemm")


@dataclass(frozen=True)
class LayerPart:
    """From one norm to the next: the kind that says most of it, its mean time in a layer, and of each of its kernels the
    name, the kind, the calls and the time in a mean layer."""

    part: str
    mean_ns: float
    kernels: list[dict]


@dataclass(frozen=True)
class LayerFold:
    """`rows` holds the kernels' places in the table, one array a layer."""

    layers: int
    mean_ns: float
    parts: list[LayerPart]
    rows: list[np.ndarray]


def fold_layers(kernels: Kernels) -> LayerFold | None:
    """The layers of the recording's busiest queue; None where nothing repeats three times."""
    pieces = _pieces(kernels, _busiest_queue(kernels))
    labels = [_label(kernels, piece) for piece in pieces]
    begin, length, period = _longest_repetition(labels)
    if not period:
        return None
    # A layer opens with its attention, where it has one.
    opening = next((place for place in range(begin, begin + period) if labels[place] == "attention"), begin)
    count = (begin + length - opening) // period
    if count < FEWEST_LAYERS:
        return None
    layers = [pieces[opening + layer * period : opening + (layer + 1) * period] for layer in range(count)]
    parts = [
        _part(kernels, labels[opening + place], [layer[place] for layer in layers]) for place in range(period)
    ]
    return LayerFold(
        count, sum(part.mean_ns for part in parts), parts, [np.concatenate(layer) for layer in layers]
    )


def layer_of(kernels: Kernels) -> Coded:
    """ "layer 3" of the kernels that `fold_layers` places in a layer, else absent."""
    fold = fold_layers(kernels)
    codes = np.full(len(kernels), -1, dtype=np.int32)
    for number, rows in enumerate(fold.rows if fold else []):
        codes[rows] = number
    return Coded(codes, [f"layer {number}" for number in range(fold.layers)] if fold else [])


def _busiest_queue(kernels: Kernels) -> np.ndarray:
    """Its kernels in the order of their begin."""
    rows = np.flatnonzero(placed(kernels))
    queues = group_codes(kernels, (*QUEUE, "stream"))[rows]
    if not len(rows):
        return rows
    values, counts = np.unique(queues, return_counts=True)
    rows = rows[queues == values[np.argmax(counts)]]
    return rows[np.argsort(kernels["start_ns"][rows], kind="stable")]


def _pieces(kernels: Kernels, rows: np.ndarray) -> list[np.ndarray]:
    """From each norm up to the next; what comes before the first one belongs to no layer."""
    kinds = kernels["kind"]
    norms = np.array([*(kind == "norm" for kind in kinds.values), False])[kinds.codes[rows]]
    return [rows[first:last] for first, last in pairwise([*np.flatnonzero(norms).tolist(), len(rows)])]


def _label(kernels: Kernels, piece: np.ndarray) -> str:
    kinds = kernels["kind"]
    present = {kinds.values[code] for code in set(kinds.codes[piece].tolist()) if code >= 0}
    return next((kind for kind in TELLING_KINDS if kind in present), "norm")


def _longest_repetition(labels: list[str]) -> tuple[int, int, int]:
    """(begin, length, period) of the longest stretch that repeats three times, the shortest period of those as long."""
    codes = np.unique(labels, return_inverse=True)[1].reshape(-1) if labels else np.zeros(0, int)
    best = (0, 0, 0)
    for period in range(1, min(LONGEST_PERIOD, len(codes) // FEWEST_LAYERS) + 1):
        same = np.r_[False, codes[period:] == codes[:-period], False].astype(np.int8)
        edges = np.flatnonzero(np.diff(same))
        for first, last in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            length = last - first + period
            telling = set(labels[first : first + period]) != {"norm"}
            if telling and length > best[1] and length >= FEWEST_LAYERS * period:
                best = (first, length, period)
    return best


def _part(kernels: Kernels, label: str, pieces: list[np.ndarray]) -> LayerPart:
    names, kinds = kernels["name"], kernels["kind"]
    calls: dict[tuple[int, int], list[int]] = defaultdict(list)
    for row in np.concatenate(pieces).tolist():
        calls[int(names.codes[row]), int(kinds.codes[row])].append(int(kernels["dur_ns"][row]))
    texts: list[dict] = [
        {
            "name": names.values[name] if name >= 0 else None,
            "kind": kinds.values[kind] if kind >= 0 else None,
            "calls": len(durations) / len(pieces),
            "mean_ns": sum(durations) / len(pieces),
        }
        for (name, kind), durations in calls.items()
    ]
    mean_ns = sum(sum(durations) for durations in calls.values()) / len(pieces)
    return LayerPart(label, mean_ns, texts)
