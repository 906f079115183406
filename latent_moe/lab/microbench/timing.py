"""How one tail is timed: passes over rotating sets of inputs, eager or as one captured graph.

A sample is the time of one pass over all sets divided by their number: sets larger than the caches, each used once a
pass, so that every call reads its own weights from memory, as the layers of a model do. Partials are restored before
each pass, outside the timed region: their values never grow.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from statistics import quantiles

import torch

# Sets of a pass together exceed this: three times an MI355X's 256 MB Infinity Cache, twelve times an H200's L2.
ROTATION_BYTES = {True: 768 * 2**20, False: 64 * 2**20}
MIN_SETS, MAX_SETS = 4, 96


@dataclass(frozen=True)
class Timing:
    """Of one call, over the samples."""

    median_us: float
    p10_us: float
    p90_us: float


def sets_needed(bytes_per_set: int, cuda: bool) -> int:
    """How many sets of inputs outgrow the caches; between 4 and 96."""
    return max(MIN_SETS, min(MAX_SETS, -(-ROTATION_BYTES[cuda] // bytes_per_set)))


def summarise(samples_us: list[float]) -> Timing:
    """Median and the 10 % and 90 % quantiles of the samples; one sample is all three."""
    if len(samples_us) == 1:
        return Timing(*samples_us * 3)
    deciles = quantiles(samples_us, n=10, method="inclusive")
    return Timing(median_us=deciles[4], p10_us=deciles[0], p90_us=deciles[8])


def sample(
    run: Callable[[int], object],
    restore: Callable[[], None],
    sets: int,
    samples: int,
    graph: bool,
    device: torch.device,
    line_up: Callable[[], None] = lambda: None,
    capturing: Callable[[torch.cuda.Stream], AbstractContextManager] = nullcontext,
) -> list[float]:
    """us per call of `run(set index)`, one number a pass, after two warm-up passes.

    `line_up` makes the ranks start together; `graph` captures one pass as a CUDA or HIP graph, inside what
    `capturing(stream)` gives, and replays it.
    """

    def one_pass() -> None:
        for index in range(sets):
            run(index)

    work = captured(one_pass, restore, capturing) if graph else one_pass
    times = [_once(work, restore, device, line_up) for _ in range(samples + 2)]
    return [seconds / sets * 1e6 for seconds in times[2:]]


def captured(
    work: Callable[[], None],
    restore: Callable[[], None],
    capturing: Callable[[torch.cuda.Stream], AbstractContextManager] = nullcontext,
) -> Callable[[], None]:
    """`work` as a graph; returns its replay. Warmed up on the stream that captures, whose workspaces it then uses."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            restore()
            work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    # The communicator's watchdog thread may query the driver while this thread captures.
    with capturing(stream), torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        work()
    return graph.replay


def _once(work, restore, device: torch.device, line_up) -> float:
    """Seconds of one pass."""
    restore()
    if device.type != "cuda":
        line_up()
        start = time.perf_counter()
        work()
        return time.perf_counter() - start
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    line_up()
    torch.cuda.synchronize(device)
    begin.record()
    work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3
