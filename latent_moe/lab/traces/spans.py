"""Which of many nested time spans holds a moment: numpy for the moments, one pass over the spans."""

import numpy as np


def innermost(starts: np.ndarray, ends: np.ndarray, moments: np.ndarray) -> np.ndarray:
    """For each moment the row of the span around it that started last, -1 where none is.

    starts, ends [R] and moments [n] are nanoseconds; spans are closed at both ends and may nest, touch or cross.
    """
    if not len(starts):
        return np.full(len(moments), -1, dtype=np.int64)
    order = np.lexsort((-ends, starts))
    begin, owner = _timeline(starts[order], ends[order])
    place = np.searchsorted(begin, moments, side="right") - 1
    found = np.where(place >= 0, owner[np.maximum(place, 0)], -1)
    return np.where(found >= 0, order[np.maximum(found, 0)], -1)


def innermost_by_key(span_keys, starts, ends, keys, moments) -> np.ndarray:
    """As `innermost`, each moment only among the spans with its key (integers; spans [R], moments [n])."""
    rows = np.full(len(moments), -1, dtype=np.int64)
    span_order, span_keys = _sorted(span_keys)
    order, keys = _sorted(keys)
    for key in np.unique(span_keys):
        spans = span_order[slice(*np.searchsorted(span_keys, [key, key + 1]))]
        mine = order[slice(*np.searchsorted(keys, [key, key + 1]))]
        if len(mine):
            found = innermost(starts[spans], ends[spans], moments[mine])
            rows[mine] = np.where(found >= 0, spans[np.maximum(found, 0)], -1)
    return rows


def _sorted(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    order = np.argsort(keys, kind="stable")
    return order, keys[order]


def _timeline(starts: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where the span on top changes: (times, rows), row -1 between spans. Spans come sorted by start."""
    if len(starts) == 1 or bool((starts[1:] > ends[:-1]).all()):
        return _flat(starts, ends)
    times: list[int] = []
    rows: list[int] = []
    stack: list[int] = []
    span_ends = ends.tolist()
    for row, start in enumerate(starts.tolist()):
        _close(stack, span_ends, start, times, rows)
        stack.append(row)
        times.append(start)
        rows.append(row)
    _close(stack, span_ends, None, times, rows)
    return np.array(times, dtype=np.int64), np.array(rows, dtype=np.int64)


def _flat(starts, ends) -> tuple[np.ndarray, np.ndarray]:
    times = np.stack([starts, ends + 1], axis=1).reshape(-1)
    rows = np.stack([np.arange(len(starts)), np.full(len(starts), -1)], axis=1).reshape(-1)
    return times, rows


def _close(stack: list, ends: list, now: int | None, times: list, rows: list) -> None:
    """Take off the stack what has ended before `now` (None: everything), noting what comes to light."""
    while stack and (now is None or ends[stack[-1]] < now):
        over = ends[stack.pop()]
        while stack and ends[stack[-1]] <= over:
            stack.pop()
        times.append(over + 1)
        rows.append(stack[-1] if stack else -1)
