"""A process between `bench` and a server: it copies the log without secrets, and ends the server whatever happens.

It runs as its own program (`python supervisor.py LOG -- COMMAND...`), standard library only. The server is ended when the
supervisor is told to (SIGTERM, SIGINT, SIGHUP), when its standard input closes (the parent is gone, however it went), and
when the server's first process exits. As a subreaper the supervisor inherits every orphan of the server, so processes that
left the server's group are found and ended too. Where the supervisor itself is killed, the kernel ends the server's first
process with it. The exit code is the server's own.

It reads /proc itself: psutil would need site-packages, whose .pth files may run anything before the first line here, and
would take 60 ms more to start; one look over 80 processes takes a millisecond either way.
"""

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

SECRETS_VARIABLE = "LATENT_MOE_SUPERVISOR_SECRETS"
SEPARATOR = "\x1f"
GRACE_VARIABLE = "LATENT_MOE_SUPERVISOR_GRACE_S"
CLEANUP_VARIABLE = "LATENT_MOE_SUPERVISOR_CLEANUP"
GRACE_S = 20.0
_CLEANUP_S = 60.0
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
# Loaded before any fork: nothing is looked up in the child.
_LIBC = ctypes.CDLL(None, use_errno=True)


def main(arguments: list[str]) -> int:
    """Run the command after `--` with its output in the file before it; returns the command's exit code."""
    log, _, *command = arguments
    become_subreaper()
    told = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: told.set())
    secrets = [s for s in os.environ.pop(SECRETS_VARIABLE, "").split(SEPARATOR) if s]
    grace_s = float(os.environ.pop(GRACE_VARIABLE, GRACE_S))
    cleanup = json.loads(os.environ.pop(CLEANUP_VARIABLE, "[]"))
    try:
        child = start(command)
    except OSError as error:
        return cannot_start(log, command[0], error)
    threading.Thread(target=wait_for_parent, args=(told,), daemon=True).start()
    copier = threading.Thread(target=copy_log, args=(child.stdout, log, secrets), daemon=True)
    copier.start()
    try:
        while child.poll() is None and not told.wait(0.1):
            pass
    finally:
        code = end(child, grace_s)
        clean_up(cleanup)
        copier.join(2.0)
    return code


def start(command: list[str]) -> subprocess.Popen:
    """The server, in a session of its own, its output in a pipe."""
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=die_with_parent if sys.platform == "linux" else None,
    )


def die_with_parent() -> None:
    """In the server's first process, before it is the server: SIGKILL once the supervisor is gone (Linux)."""
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def prctl(option: int, value: int) -> None:
    """Linux's prctl(2) for this process."""
    _LIBC.prctl(option, value, 0, 0, 0)


def clean_up(command: list[str]) -> None:
    """Run what ends the server beyond its processes (a container), whether it is still there or not."""
    if command:
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_CLEANUP_S)


def cannot_start(log: str, program: str, error: OSError) -> int:
    """Say in the log that the program is not there (or not executable); returns the shell's exit code for that."""
    with open(log, "a", encoding="utf-8", errors="replace") as target:
        target.write(f"{program} could not be started: {error.strerror}\n")
    return 127


def become_subreaper() -> None:
    """Orphaned descendants become this process's children (Linux; elsewhere the process group has to do)."""
    if sys.platform == "linux":
        prctl(_PR_SET_CHILD_SUBREAPER, 1)


def wait_for_parent(told: threading.Event) -> None:
    """Set `told` when standard input ends: the only writer, the parent, is gone."""
    while os.read(0, 1024):
        pass
    told.set()


def copy_log(source, log: str, secrets: list[str]) -> None:
    """Write what the server prints to `log`, each secret value replaced; what cannot be written is lost."""
    # Line by line: what failed to be written is not kept in a buffer to fail again.
    with open(log, "ab", buffering=0) as target:
        for raw in iter(source.readline, b""):
            line = raw.decode("utf-8", "replace")
            for secret in secrets:
                line = line.replace(secret, "***")
            # A full disk must not stop the server, which would wait for its pipe to be read.
            with contextlib.suppress(OSError):
                target.write(line.encode("utf-8", "replace"))


def end(child: subprocess.Popen, grace_s: float) -> int:
    """End the server's group politely, after `grace_s` what is left by force; returns the server's exit code."""
    if sys.platform != "linux":
        # Without /proc nothing is found one by one.
        signal_group(child.pid, signal.SIGTERM)
    # Each is asked once: a second SIGTERM could cut short what the first began.
    asked: set[int] = set()
    deadline = time.monotonic() + grace_s
    empty = 0
    # An orphan that is just changing parents is missed by one look, and found by the next.
    while empty < 2 and time.monotonic() < deadline:
        left = descendants(os.getpid())
        empty = 0 if left else empty + 1
        for pid in set(left) - asked:
            signal_one(pid, signal.SIGTERM)
        asked.update(left)
        reap(child)
        time.sleep(0.05)
    kill_rest(child)
    code = child.poll()
    return 1 if code is None else code if code >= 0 else 128 - code


def kill_rest(child: subprocess.Popen, tries: int = 100) -> None:
    """SIGKILL whatever is left, until nothing is."""
    signal_group(child.pid, signal.SIGKILL)
    for _ in range(tries):
        left = descendants(os.getpid())
        if not left:
            return
        for pid in left:
            signal_one(pid, signal.SIGKILL)
        reap(child)
        time.sleep(0.05)


def signal_group(pid: int, number: int) -> None:
    """Signal a process group, if there is still one."""
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        return


def signal_one(pid: int, number: int) -> None:
    """Signal one process, if it is still there."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return


def reap(first: subprocess.Popen) -> None:
    """Collect orphans that have exited; the server's first process is left to its Popen."""
    first.poll()
    for pid, (state, parent) in _processes().items():
        if parent == os.getpid() and state == "Z" and pid != first.pid:
            try:
                os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                continue


def descendants(pid: int) -> list[int]:
    """Every live process below `pid`, nearest first; one look over /proc, however many there are."""
    below: dict[int, list[int]] = {}
    processes = _processes()
    for child, (_, parent) in processes.items():
        below.setdefault(parent, []).append(child)
    live, rest = [], [pid]
    while rest:
        children = below.get(rest.pop(0), [])
        live += [child for child in children if processes[child][0] != "Z"]
        rest += children
    return live


def _processes() -> dict[int, tuple[str, int]]:
    """{pid: (state, parent pid)} of every process there is, dead ones that nobody has collected (Z) included."""
    processes = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            text = (entry / "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        state, parent = text.rpartition(")")[2].split()[:2]
        processes[int(entry.name)] = (state, int(parent))
    return processes


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
