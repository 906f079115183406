"""launch(): real ranks for one function, with a time limit, and none left behind."""

import multiprocessing as mp
import os
import pickle
import queue
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from latent_moe.errors import InputError, LatentMoEError

MAX_RANKS = 64
_GRACE_S = 5.0


def launch(
    fn: Callable[..., Any], tp: int, *args: Any, timeout_s: float = 300, backend: str | None = None
) -> list[Any]:
    """Call fn(tensor_parallel, *args) on `tp` real ranks; returns their results by rank.

    fn must be importable (ranks are spawned). `timeout_s` bounds the whole call and each collective. `backend`
    defaults to gloo on a CPU and nccl where there are GPUs, one rank a GPU.

    Raises InputError when tp ranks cannot be had or an argument of fn's own is unusable; LatentMoEError naming
    the rank when one fails, dies or exceeds the limit. The ranks are ended in every case.
    """
    backend = backend or _default_backend(tp)
    if not 1 <= tp <= MAX_RANKS:
        raise InputError(f"tp {tp}: between 1 and {MAX_RANKS} ranks can be launched")
    with tempfile.TemporaryDirectory(prefix="latent_moe_") as folder:
        return _run(fn, tp, args, timeout_s, backend, os.path.join(folder, "rendezvous"))


def _default_backend(tp: int) -> str:
    if not torch.cuda.is_available():
        return "gloo"
    if torch.cuda.device_count() < tp:
        raise InputError(f"tp {tp} needs {tp} GPUs, this machine has {torch.cuda.device_count()}")
    return "nccl"


def _run(fn, tp, args, timeout_s, backend, rendezvous) -> list[Any]:
    context = mp.get_context("spawn")
    results = context.Queue()
    ranks = [
        context.Process(
            target=_rank_main,
            args=(rank, tp, backend, rendezvous, timeout_s, fn, args, results),
            name=f"latent-moe-rank-{rank}",
            daemon=True,
        )
        for rank in range(tp)
    ]
    try:
        for process in ranks:
            process.start()
        return _collect(ranks, results, time.monotonic() + timeout_s, timeout_s)
    finally:
        _end(ranks)
        results.close()


def _collect(ranks, results, deadline: float, timeout_s: float) -> list[Any]:
    answers: dict[int, Any] = {}
    while len(answers) < len(ranks):
        try:
            rank, ok, payload = results.get(timeout=0.2)
        except queue.Empty:
            _check_alive(ranks, answers, results)
            if time.monotonic() > deadline:
                late = sorted(set(range(len(ranks))) - set(answers))
                raise LatentMoEError(f"rank {late[0]} gave no result within {timeout_s:g} s") from None
            continue
        if not ok:
            _raise_rank_error(rank, pickle.loads(payload))
        answers[rank] = pickle.loads(payload)
    return [answers[rank] for rank in range(len(ranks))]


def _check_alive(ranks, answers, results) -> None:
    for rank, process in enumerate(ranks):
        if rank not in answers and process.exitcode is not None and results.empty():
            raise LatentMoEError(f"rank {rank} died (exit code {process.exitcode}) before it gave a result")


def _raise_rank_error(rank: int, error: tuple[bool, str, str]) -> None:
    is_input, message, trace = error
    if is_input:
        raise InputError(message)
    raise LatentMoEError(f"rank {rank} failed: {message}") from RuntimeError(trace)


def _end(ranks) -> None:
    started = [process for process in ranks if process.pid is not None]
    # A rank that has answered may still be leaving its process group: let it, briefly.
    deadline = time.monotonic() + _GRACE_S
    for process in started:
        process.join(max(0.0, deadline - time.monotonic()) if process.exitcode is None else 0)
    for process in started:
        if process.is_alive():
            process.kill()
        process.join()


def _rank_main(rank, tp, backend, rendezvous, timeout_s, fn, args, results) -> None:
    try:
        answer = fn(_join(rank, tp, backend, rendezvous, timeout_s), *args)
        message = (rank, True, pickle.dumps(answer))
    except BaseException as error:  # noqa: BLE001 - whatever ends a rank is reported by the parent
        one_line = " ".join(f"{type(error).__name__}: {error}".split())
        is_input = isinstance(error, InputError)
        text = str(error) if is_input else one_line
        message = (rank, False, pickle.dumps((is_input, text, traceback.format_exc())))
    results.put(message)
    results.close()
    results.join_thread()
    if message[1] and dist.is_initialized():
        dist.destroy_process_group()
    # A failed rank leaves at once: destroying the group would wait for the peers that still wait for it.
    os._exit(0)


def _join(rank: int, tp: int, backend: str, rendezvous: str, timeout_s: float):
    from latent_moe.parallel import TensorParallel

    if backend == "gloo":
        # Ranks share the cores; more threads than cores only wait for each other.
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // tp))
    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if tp == 1:
        return TensorParallel.single(device)
    dist.init_process_group(
        backend,
        init_method=f"file://{rendezvous}",
        rank=rank,
        world_size=tp,
        timeout=timedelta(seconds=timeout_s),
    )
    return TensorParallel(rank=rank, size=tp, group=dist.group.WORLD, device=device)
