"""Real ranks for one function, with a time limit, and none left behind; `latent_moe.parallel.launch` is the door.

Ranks come from a fork server that has imported torch once: eight ranks cost one import, not eight. Each rank
answers through its own pipe, so a rank that is killed while it writes cannot block the others.
"""

import multiprocessing as mp
import os
import pickle
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from typing import Any

import torch

from latent_moe.errors import InputError, LatentMoEError

MAX_RANKS = 64
_GRACE_S = 5.0
_ORPHANED = 3
# SIGHUP: the terminal was closed. Windows has no such signal.
_ENDINGS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


def run_ranks(
    join: Callable[..., Any],
    fn: Callable[..., Any],
    tp: int,
    args: tuple,
    timeout_s: float,
    backend: str | None,
) -> list[Any]:
    """fn(join(rank, tp, backend, rendezvous, timeout_s), *args) on `tp` ranks; see `latent_moe.parallel.launch`."""
    if not isinstance(tp, int) or not 1 <= tp <= MAX_RANKS:
        raise InputError(f"tp {tp}: between 1 and {MAX_RANKS} ranks can be launched")
    if not timeout_s > 0:
        raise InputError(f"timeout_s {timeout_s} is not a positive number of seconds")
    backend = backend or _default_backend(tp)
    call = _pickled(join, fn, args)
    with _ended_as_exit(), tempfile.TemporaryDirectory(prefix="latent_moe_") as folder:
        place = (tp, backend, os.path.join(folder, "rendezvous"), timeout_s)
        return _Ranks(place, call).results(timeout_s)


def _pickled(join, fn, args) -> bytes:
    try:
        return pickle.dumps((join, fn, args))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise InputError(f"{fn!r} or its arguments cannot be sent to a rank ({error})") from error


def _default_backend(tp: int) -> str:
    if not torch.cuda.is_available():
        return "gloo"
    if torch.cuda.device_count() < tp:
        raise InputError(f"tp {tp} needs {tp} GPUs, this machine has {torch.cuda.device_count()}")
    return "nccl"


@contextmanager
def _ended_as_exit() -> Iterator[None]:
    # The default action of these signals ends this process without running any `finally`.
    main = threading.current_thread() is threading.main_thread()
    taken = [number for number in _ENDINGS if main and signal.getsignal(number) is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, _exit_on_signal)
    try:
        yield
    finally:
        for number in taken:
            # Ignored: one of them has come, and this process is on its way out.
            if signal.getsignal(number) is _exit_on_signal:
                signal.signal(number, signal.SIG_DFL)


def _exit_on_signal(number, _frame) -> None:
    # Whoever sends one may send more (`timeout` does): they must not cut short what is put in order now.
    for ending in _ENDINGS:
        signal.signal(ending, signal.SIG_IGN)
    raise SystemExit(128 + number)


class _Ranks:
    """The ranks of one call: started, listened to, ended."""

    def __init__(self, place, call: bytes):
        context = mp.get_context("forkserver")
        context.set_forkserver_preload(["torch", "torch.distributed", "latent_moe.parallel"])
        self.listening: dict[Any, int] = {}
        self.writers, self.processes = [], []
        environment = dict(os.environ)
        for rank in range(place[0]):
            reader, writer = context.Pipe(duplex=False)
            self.listening[reader] = rank
            self.writers.append(writer)
            self.processes.append(
                context.Process(
                    target=rank_main,
                    args=(rank, place, environment, call, writer),
                    name=f"latent-moe-rank-{rank}",
                    daemon=True,
                )
            )

    def results(self, timeout_s: float) -> list[Any]:
        """Start the ranks and collect what they return; leaves none of them running."""
        answered = False
        try:
            _start(self.processes)
            for writer in self.writers:
                writer.close()
            answers = self._collect(time.monotonic() + timeout_s, timeout_s)
            answered = True
            return answers
        finally:
            # After a failure the peers wait for a rank that will not come: end them at once.
            self._end(_GRACE_S if answered else 0.0)

    def _collect(self, deadline: float, timeout_s: float) -> list[Any]:
        answers: dict[int, Any] = {}
        while self.listening:
            ready = wait(list(self.listening), max(0.0, deadline - time.monotonic()))
            if not ready:
                late = min(self.listening.values())
                raise LatentMoEError(f"rank {late} gave no result within {timeout_s:g} s")
            self._take(ready, answers)
        return [answers[rank] for rank in sorted(answers)]

    def _take(self, ready, answers: dict[int, Any]) -> None:
        heard: dict[int, Any] = {self.listening.pop(connection): _receive(connection) for connection in ready}
        # A rank that died is the cause; the peers that then lost their connection to it are the effect.
        for rank, message in heard.items():
            if message is None:
                raise LatentMoEError(f"rank {rank} died {self._how(rank)} before it gave a result")
        failed = [rank for rank, message in heard.items() if not message[0]]
        if failed:
            self._raise_first(heard, failed)
        answers.update({rank: pickle.loads(message[1]) for rank, message in heard.items()})

    def _raise_first(self, heard, failed: list[int]) -> None:
        heard = {rank: heard[rank] for rank in failed} | self._stragglers()
        for rank, message in heard.items():
            if message is None:
                raise LatentMoEError(f"rank {rank} died {self._how(rank)} before it gave a result")
        rank, failure = min(
            ((rank, pickle.loads(message[1])) for rank, message in heard.items() if not message[0]),
            key=lambda pair: pair[1]["when"],
        )
        if failure["is_input"]:
            raise InputError(failure["text"])
        raise LatentMoEError(f"rank {rank} failed: {failure['text']}") from RuntimeError(failure["trace"])

    def _stragglers(self) -> dict[int, Any]:
        # The peer's complaint may arrive before the cause does: listen a moment longer.
        ready = wait(list(self.listening), 0.3) if self.listening else []
        return {self.listening.pop(connection): _receive(connection) for connection in ready}

    def _how(self, rank: int) -> str:
        process = self.processes[rank]
        process.join(_GRACE_S)
        code = process.exitcode
        if code is not None and code < 0:
            return f"of signal {_signal_name(-code)}"
        return f"with exit code {code}"

    def _end(self, grace_s: float) -> None:
        started = [process for process in self.processes if process.pid is not None]
        deadline = time.monotonic() + grace_s
        for process in started:
            process.join(max(0.0, deadline - time.monotonic()))
        for process in started:
            if process.is_alive():
                process.kill()
        for process in started:
            process.join()
        for connection in [*self.listening, *self.writers]:
            connection.close()


def _start(processes) -> None:
    # Ctrl-C reaches every process of the terminal. Blocked here, it stays blocked in the ranks, which this process
    # ends; unblocked again below, it interrupts this process.
    blockable = hasattr(signal, "pthread_sigmask")
    if blockable:
        # Started now: whoever starts it later unblocks SIGINT with it, and the fork server would hear a Ctrl-C.
        resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if blockable else None
    try:
        for process in processes:
            process.start()
    finally:
        if before is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _receive(connection) -> tuple[bool, bytes] | None:
    """What a rank sent, None when it died without sending."""
    try:
        return connection.recv()
    except (EOFError, OSError):
        return None
    finally:
        connection.close()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


# In a rank's process: join the group, call the function, send one message, leave.


def rank_main(rank: int, place: tuple, environment: dict[str, str], call: bytes, connection) -> None:
    """Run `call` as rank `rank` and send (ok, pickled result or failure) through `connection`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _end_with_parent()
    # The fork server started earlier: this call's environment may have changed since.
    os.environ.clear()
    os.environ.update(environment)
    try:
        join, fn, args = pickle.loads(call)
        message = (True, pickle.dumps(fn(join(rank, *place), *args)))
    except BaseException as error:  # whatever ends a rank is reported by the parent
        message = (False, pickle.dumps(_failure(error)))
    connection.send(message)
    connection.close()
    _leave(message[0])


def _failure(error: BaseException) -> dict[str, Any]:
    is_input = isinstance(error, InputError)
    text = str(error) if is_input else f"{type(error).__name__}: {error}"
    # gloo and nccl append a native stack trace: the first line says it all.
    line = " ".join(text.strip().split("\n")[0].split())
    return {"is_input": is_input, "text": line, "trace": traceback.format_exc(), "when": time.time()}


def _end_with_parent() -> None:
    """A rank whose parent is gone has nobody to answer to: it ends, even from inside a collective."""
    parent = mp.parent_process()
    if parent is None:
        return

    def watch() -> None:
        parent.join()
        os._exit(_ORPHANED)

    threading.Thread(target=watch, daemon=True, name="parent-watch").start()


def _leave(ok: bool) -> None:
    import torch.distributed as dist

    if ok and dist.is_initialized():
        dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    # A failed rank leaves at once: destroying the group would wait for the peers that still wait for it.
    os._exit(0)
