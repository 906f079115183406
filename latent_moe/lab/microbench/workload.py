"""What is profiled: tails on real ranks, each step in a region whose name says tail, T, step and the GEMM's M, N, K.

T tokens, H hidden, L latent, tp ranks. Inputs are made and every tail is warmed up before the recording begins.
"""

import gzip
import json
import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from latent_moe import platform
from latent_moe.config import LatentMoEConfig, preset
from latent_moe.errors import InputError, unknown
from latent_moe.files import write_whole
from latent_moe.lab.microbench import rocprof
from latent_moe.lab.microbench.inputs import make_inputs
from latent_moe.parallel import TensorParallel, launch
from latent_moe.runner import size_refusal
from latent_moe.tail_variants.declaration import Tail
from latent_moe.tail_variants.registry import TAILS, known_tail

DTYPES = ("bfloat16", "float16", "float32")


@dataclass(frozen=True)
class Workload:
    """Which tails run, at which T, on how many ranks; `steps` are recorded, `warm_up` steps before them are not."""

    tails: tuple[str, ...]
    tokens: tuple[int, ...]
    tp: int = 2
    preset: str = "demo"
    dtype: str = "bfloat16"
    steps: int = 8
    warm_up: int = 3

    def check(self) -> None:
        """Raise InputError for what cannot run, before any rank starts."""
        config = preset(self.preset)
        if not self.tails or not self.tokens:
            raise InputError("a workload needs at least one tail and one T")
        tails = [known_tail(name) for name in self.tails]
        if min(self.tokens) < 1 or self.steps < 1 or self.warm_up < 0 or self.tp < 1:
            raise InputError("T, steps and tp must be at least 1, warm-up steps at least 0")
        if self.dtype not in DTYPES:
            raise unknown("dtype", self.dtype, DTYPES)
        for tail in tails:
            _check_tail(tail, config, self)


def _check_tail(tail: Tail, config: LatentMoEConfig, work: Workload) -> None:
    for tokens in work.tokens:
        refused = size_refusal(tail, config, work.tp, tokens, getattr(torch, work.dtype))
        if refused:
            raise InputError(f"tail {tail.name} at T={tokens}: {refused.text}")


def region_name(tail: Tail, config: LatentMoEConfig, tokens: int, tp: int, step: int) -> str:
    """`tail=column_parallel T=16 step=3 M=16 N=896 K=3584`; without a shape where a tail runs GEMMs of several."""
    name = f"tail={tail.name} T={tokens} step={step}"
    shape = tail.gemm_shape(config, tokens, tp)
    return name if shape is None else f"{name} M={shape[0]} N={shape[1]} K={shape[2]}"


def prepared(tp: TensorParallel, work: Workload, tail: Tail) -> Callable[[], None]:
    """Make inputs for every T and warm the tail up; returns what runs the recorded steps."""
    config = preset(work.preset)
    dtype = getattr(torch, work.dtype)
    inputs = {tokens: make_inputs(tail, config, tokens, tp, dtype) for tokens in work.tokens}

    def step(tokens: int, number: int) -> None:
        own = inputs[tokens]
        index = number % len(own.routed)
        tail.function(own.routed[index], own.shared[index], own.weights[index], own.norm, tp)

    def run() -> None:
        for tokens in work.tokens:
            for number in range(work.steps):
                with platform.profiler_range(region_name(tail, config, tokens, tp.size, number)):
                    step(tokens, number)
                # A step ends on the device before the next begins, so that its kernels are its own.
                platform.synchronize()

    for tokens in work.tokens:
        for number in range(work.warm_up):
            step(tokens, number)
        inputs[tokens].restore()
    line_up(tp)
    return run


def line_up(tp: TensorParallel) -> None:
    """Every rank's device is idle, and all ranks leave together: none waits for another in what follows."""
    platform.synchronize()
    if tp.size > 1:
        dist.barrier(group=tp.group)
        platform.synchronize()


def under_torch(tp: TensorParallel, work: Workload, folder: str) -> None:
    """On every rank: folder/<tail>/rank<r>.pt.trace.json.gz for each tail."""
    with _profiler():
        pass  # the profiler's own first start is slow and would fall into the first tail
    for name in work.tails:
        run = prepared(tp, work, TAILS[name])
        host = socket.gethostname() if tp.nodes > 1 else None
        with traced(Path(folder) / name / f"rank{tp.rank}.pt.trace.json.gz", host=host):
            run()
        line_up(tp)


@contextmanager
def traced(path: Path, keep: bool = True, level: int = 6, host: str | None = None) -> Iterator[None]:
    """Record with torch.profiler and write `path` (.json.gz) at the end; nothing is written unless `keep`.

    `host` goes into the file where ranks are on several: two hosts may have a process of the same number.
    """
    with _profiler(record_shapes=True, acc_events=True) as profiler:
        yield
        if host is not None:
            profiler.add_metadata("hostname", host)
    if keep:
        plain = path.with_suffix("")
        plain.parent.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(plain))
        write_whole(path, gzip.compress(plain.read_bytes(), level, mtime=0))
        plain.unlink()


def _profiler(**options) -> torch.profiler.profile:
    # Kineto writes a line on standard error at each start and stop, at a level above all its named ones.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    gpu = [torch.profiler.ProfilerActivity.CUDA] if torch.cuda.is_available() else []
    return torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU, *gpu], **options)


def files_of_rank(tp: TensorParallel, folder: str) -> tuple[str, dict[str, bytes]]:
    """On every rank: (its host, what it recorded below `folder` by relative path)."""
    paths = Path(folder).glob(f"*/rank{tp.rank}.pt.trace.json.gz")
    return socket.gethostname(), {str(path.relative_to(folder)): path.read_bytes() for path in sorted(paths)}


def under_rocprofv3(tp: TensorParallel, work: Workload) -> None:
    """On every rank, inside rocprofv3: the recording runs between roctx's profiler resume and pause."""
    for name in work.tails:
        run = prepared(tp, work, TAILS[name])
        with _recording():
            run()
            platform.synchronize()


@contextmanager
def _recording():
    rocprof.resume()
    try:
        yield
    finally:
        rocprof.pause()


def main(argv: list[str]) -> int:
    """`python -m latent_moe.lab.microbench.workload '<Workload as JSON>'`: what rocprofv3 starts."""
    raw = json.loads(argv[0])
    work = Workload(**{**raw, "tails": tuple(raw["tails"]), "tokens": tuple(raw["tokens"])})
    work.check()
    launch(under_rocprofv3, work.tp, work)
    return 0


def as_json(work: Workload) -> str:
    """The workload as `main` reads it."""
    return json.dumps(asdict(work))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
