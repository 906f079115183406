"""One vLLM server: started in its own process group behind a supervisor, waited for, and always ended.

`python -m latent_moe.lab.bench.server GO MODULE ARGUMENTS` is the server on standby: it imports MODULE, waits for the
file GO, then is `python -m MODULE ARGUMENTS`. Imports are most of a start on a fast
machine. Nothing of the server itself exists before GO: no port, no engine, no device memory.
"""

import http.client
import json
import os
import re
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from latent_moe.errors import InputError, LatentMoEError
from latent_moe.lab.bench import supervisor
from latent_moe.lab.bench.machine import listeners
from latent_moe.lab.secrets import hide

_POLL_S = 0.25
_HTTP_S = 5.0
_DYING_S = 5.0
_ENDING_POLL_S = 0.02
_STANDBY_POLL_S = 0.05
_WATCH_S = 5.0
# Every process of a command carries it, wherever it went.
_MARK = "LATENT_MOE_PROCESS_OF"
# ValueError: text; torch.OutOfMemoryError: text.
_ERROR = re.compile(r"\b(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt)\b: \S.*")
_ENDINGS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}


class ServerError(LatentMoEError):
    """A server that did not start or died; `log_tail` holds the last lines of its log."""

    def __init__(self, message: str, log_tail: str):
        super().__init__(message)
        self.log_tail = log_tail


def check_port(port: int) -> None:
    """Raise InputError when somebody already listens on `port`."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        if probe.connect_ex(("127.0.0.1", port)) == 0:
            raise InputError(f"port {port} is taken: another server answers there")


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Signals wait for the end of this: Popen takes a lock in `poll`, and a Ctrl-C just then would leave it taken, so that
    nothing could ever wait for the process again.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDINGS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class SupervisedProcess:
    """A command behind a supervisor: its output in `log`, secrets hidden, ended with everything it started.

    What does not end within `grace_s` of being asked to is killed; `cleanup` is a command that ends what is no process of
    this one's (a container).
    """

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        log: Path,
        secrets: Sequence[str] = (),
        cwd: Path | None = None,
        grace_s: float = supervisor.GRACE_S,
        cleanup: Sequence[str] = (),
    ):
        self.log, self.grace_s, self.cleanup = log, grace_s, list(cleanup)
        self._mark = uuid.uuid4().hex
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(hide(" ".join(command), secrets) + "\n", encoding="utf-8")
        environment = {**os.environ, **env, supervisor.GRACE_VARIABLE: str(grace_s), _MARK: self._mark}
        environment[supervisor.SECRETS_VARIABLE] = supervisor.SEPARATOR.join(secrets)
        environment[supervisor.CLEANUP_VARIABLE] = json.dumps(self.cleanup)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-S", "-E", supervisor.__file__, str(log.resolve()), "--", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            cwd=cwd,
            start_new_session=True,
        )

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        with _uninterrupted():
            return self._process.poll()

    def _ends_within(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while self.exit_code is None:
            if time.monotonic() > deadline:
                return False
            time.sleep(_ENDING_POLL_S)
        return True

    def wait(self, timeout_s: float) -> int:
        """Wait for the command's end; returns its exit code. Raises LatentMoEError past `timeout_s`."""
        if not self._ends_within(timeout_s):
            self.stop()
            raise LatentMoEError(f"{self.log.name}: not done within {timeout_s:g} s, ended")
        return self._process.returncode

    def stop(self) -> None:
        """End the command and everything it started; returns when it is gone."""
        if self._process.stdin:
            self._process.stdin.close()
        if not self._ends_within(self.grace_s + 15.0):
            self._process.kill()
            self._ends_within(15.0)
        if (self.exit_code or 0) < 0:
            # The supervisor was killed: what it leaves has other parents now, and is known by the mark alone.
            for process in self.left():
                with suppress(psutil.Error):
                    process.kill()
            supervisor.clean_up(self.cleanup)

    def left(self) -> list[psutil.Process]:
        """Its processes that are still there, wherever they went."""
        processes = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get(_MARK) == self._mark:
                    processes.append(process)
        return processes

    def tree(self) -> list[psutil.Process]:
        """The processes that it has now, the supervisor left out."""
        try:
            return psutil.Process(self._process.pid).children(recursive=True)
        except psutil.Error:
            return []

    def tail(self, lines: int = 15) -> str:
        """The last lines of the log."""
        return "\n".join(line.rstrip()[:400] for line in self.text().splitlines()[-lines:])

    def text(self) -> str:
        """The whole log, "" where it cannot be read."""
        try:
            return self.log.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""


class Server:
    """A server that answers on `url` while the context is open; `process` None: it runs already and is left running."""

    def __init__(self, name: str, process: SupervisedProcess | None, url: str):
        self.name, self.process, self.url = name, process, url
        self.fault: str | None = None
        self._closed = threading.Event()

    def __enter__(self) -> "Server":
        if self.process:
            threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        if self.process:
            self.process.stop()

    def _watch(self) -> None:
        """End the server when one of its processes is stopped for two looks in a row: it would answer nobody, and vLLM
        waits five minutes before it says so."""
        before: set[int] = set()
        while self.process and not self._closed.wait(_WATCH_S):
            stopped = {each.pid: each for each in self.process.tree() if _is_stopped(each)}
            if both := before & set(stopped):
                process = stopped[min(both)]
                with suppress(psutil.Error):
                    self.fault = (
                        f"its process {process.pid} ({process.name()}) hangs: it is stopped (SIGSTOP)"
                    )
                    self.process.stop()
                    return
            before = set(stopped)

    def error(self, what: str) -> ServerError:
        """ServerError for `what`, with the log's first error and where the log lies."""
        if self.process is None:
            return ServerError(f"server {self.name} {what}", "")
        first = first_error(self.process.text())
        cause = f": {first}" if first else ""
        return ServerError(f"server {self.name} {what}{cause} ({self.process.log})", self.tail())

    def tail(self) -> str:
        """The last lines of its log, "" where there is none."""
        return self.process.tail() if self.process else ""

    def wait_healthy(self, timeout_s: float) -> float:
        """Wait until /health answers; returns the seconds it took.

        Raises ServerError when the server exits first or `timeout_s` passes.
        """
        start = time.monotonic()
        while time.monotonic() - start < timeout_s:
            self.check_alive("before it was ready")
            if self.get("/health") is not None:
                return time.monotonic() - start
            time.sleep(_POLL_S)
        raise self.error(f"was not ready within {timeout_s:g} s")

    def check_alive(self, when: str) -> None:
        """Raise ServerError when the server has exited or hangs."""
        if self.fault:
            raise self.error(f"was ended {when}: {self.fault}")
        code = self.process.exit_code if self.process else None
        if code is not None:
            raise self.error(f"died {when} (exit code {code})")

    def check_dying(self, when: str) -> None:
        """Raise ServerError when the server has exited, or no longer answers and exits within its time to end.

        A server that dies closes its connections long before all its processes are gone: a client fails that much earlier.
        """
        until = time.monotonic() + (self.process.grace_s if self.process else 0) + _DYING_S
        while time.monotonic() < until:
            self.check_alive(when)
            if self.get("/health") is not None:
                return
            time.sleep(_POLL_S)
        if self.process is None:
            raise self.error(f"at {self.url} answers no more {when}")

    def check_port(self, port: int) -> None:
        """Raise ServerError where another process listens on the server's port too: vLLM's socket lets others share it
        (SO_REUSEPORT), and the kernel then hands either of them requests."""
        ours = {each.pid for each in self.process.tree()} if self.process else set()
        for pid, name in listeners(port):
            if ours and pid not in ours:
                raise self.error(f"shares port {port} with process {pid} ({name})")

    def version(self) -> str | None:
        """What it says it runs: vLLM at /version, SGLang at /get_server_info; None where it says nothing."""
        for path in ("/version", "/get_server_info"):
            with suppress(ValueError, KeyError, TypeError):
                if isinstance(version := json.loads(self.get(path) or "")["version"], str):
                    return version
        return None

    def get(self, path: str) -> str | None:
        """The body of GET path, None when there is no good answer."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=_HTTP_S) as answer:
                return answer.read().decode("utf-8", "replace")
        except (OSError, ValueError, http.client.HTTPException):
            return None


def _is_stopped(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return process.status() == psutil.STATUS_STOPPED
    return False


def first_error(log: str) -> str | None:
    """What failed first: the first line of a server's log that names an exception, without what a logger put before it.

    vLLM's last lines only say that the root cause stands above.
    """
    for line in log.splitlines()[1:]:
        if (match := _ERROR.search(line)) and "root cause" not in line:
            return match[0].strip()[:300]
    return None


def standby(go: str, module: str, arguments: list[str]) -> None:
    """Import, wait for the file `go`, serve."""
    __import__(module)
    while not Path(go).exists():
        time.sleep(_STANDBY_POLL_S)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__")


if __name__ == "__main__":
    standby(sys.argv[1], sys.argv[2], sys.argv[3:])
