"""One vLLM server: started in its own process group behind a supervisor, waited for, and always ended.

`python -m latent_moe.lab.bench.server GO ARGUMENTS` is the server on standby: it imports what the server needs, waits
for the file GO, then is `python -m vllm.entrypoints.openai.api_server ARGUMENTS`. Imports are most of a start on a fast
machine. Nothing of the server itself exists before GO: no port, no engine, no device memory.
"""

import fcntl
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from latent_moe.errors import InputError, LatentMoEError
from latent_moe.lab.bench import supervisor
from latent_moe.lab.secrets import hide

MODULE = "vllm.entrypoints.openai.api_server"
_PORTS = range(20_000, 32_768)
_POLL_S = 0.25
_HTTP_S = 5.0
_DYING_S = 5.0
_ENDING_POLL_S = 0.02
_STANDBY_POLL_S = 0.05
_ENDINGS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}


class ServerError(LatentMoEError):
    """A server that did not start or died; `log_tail` holds the last lines of its log."""

    def __init__(self, message: str, log_tail: str):
        super().__init__(message)
        self.log_tail = log_tail


@contextmanager
def reserved_ports(count: int) -> Iterator[list[int]]:
    """TCP ports that nobody listens on and that no other bench of this machine takes while the context is open.

    The lowest such ports below those that the kernel gives to clients. Raises LatentMoEError when there are not enough.
    """
    with ExitStack() as held:
        ports: list[int] = []
        for port in _PORTS:
            if len(ports) == count:
                break
            if (lock := _lock_of(port)) is not None:
                held.callback(os.close, lock)
                ports += [port] if _is_free(port) else []
        if len(ports) < count:
            raise LatentMoEError(f"no free port between {_PORTS.start} and {_PORTS.stop}")
        yield ports


def free_ports(count: int) -> list[int]:
    """The ports that a bench which starts now would reserve."""
    with reserved_ports(count) as ports:
        return ports


def _lock_of(port: int) -> int | None:
    """The descriptor of the port's lock, held until it is closed; None where another bench holds it."""
    path = os.path.join(tempfile.gettempdir(), f"latent_moe_port_{port}.lock")
    descriptor = None
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CREAT, 0o644)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        if descriptor is not None:
            os.close(descriptor)
        return None
    return descriptor


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


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

    What does not end within `grace_s` of being asked to is killed.
    """

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        log: Path,
        secrets: Sequence[str] = (),
        cwd: Path | None = None,
        grace_s: float = supervisor.GRACE_S,
    ):
        self.log = log
        self.grace_s = grace_s
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(hide(" ".join(command), secrets) + "\n", encoding="utf-8")
        environment = {**os.environ, **env, supervisor.GRACE_VARIABLE: str(grace_s)}
        environment[supervisor.SECRETS_VARIABLE] = supervisor.SEPARATOR.join(secrets)
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

    def tail(self, lines: int = 15) -> str:
        """The last lines of the log."""
        try:
            text = self.log.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
        return "\n".join(line.rstrip()[:400] for line in text.splitlines()[-lines:])


class Server:
    """A vLLM server that answers on http://127.0.0.1:port while the context is open."""

    def __init__(self, name: str, process: SupervisedProcess, port: int):
        self.name = name
        self.process = process
        self.port = port

    @property
    def url(self) -> str:
        """http://127.0.0.1:port"""
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_) -> None:
        self.process.stop()

    def wait_healthy(self, timeout_s: float, waiting: Callable[[float], None] = lambda _: None) -> float:
        """Wait until /health answers; returns the seconds it took.

        Raises ServerError when the server exits first or `timeout_s` passes.
        """
        start = time.monotonic()
        while (elapsed := time.monotonic() - start) < timeout_s:
            self.check_alive("before it was ready")
            if self.get("/health") is not None:
                return time.monotonic() - start
            waiting(elapsed)
            time.sleep(_POLL_S)
        raise ServerError(f"server {self.name} was not ready within {timeout_s:g} s", self.process.tail())

    def check_alive(self, when: str) -> None:
        """Raise ServerError when the server has exited."""
        code = self.process.exit_code
        if code is not None:
            raise ServerError(f"server {self.name} died {when} (exit code {code})", self.process.tail())

    def check_dying(self, when: str) -> None:
        """Raise ServerError when the server has exited, or no longer answers and exits within its time to end.

        A server that dies closes its connections long before all its processes are gone: a client fails that much earlier.
        """
        until = time.monotonic() + self.process.grace_s + _DYING_S
        while time.monotonic() < until:
            self.check_alive(when)
            if self.get("/health") is not None:
                return
            time.sleep(_POLL_S)

    def get(self, path: str) -> str | None:
        """The body of GET path, None when there is no good answer."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=_HTTP_S) as answer:
                return answer.read().decode("utf-8", "replace")
        except (OSError, urllib.error.URLError):
            return None


def standby(go: str, arguments: list[str]) -> None:
    """Import, wait for the file `go`, serve."""
    __import__(MODULE)
    while not Path(go).exists():
        time.sleep(_STANDBY_POLL_S)
    sys.argv = [MODULE, *arguments]
    runpy.run_module(MODULE, run_name="__main__")


if __name__ == "__main__":
    standby(sys.argv[1], sys.argv[2:])
