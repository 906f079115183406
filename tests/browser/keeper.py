"""Runs one command and ends it with everything below it once standard input closes: `python keeper.py COMMAND ...`.

A test holds the other end of that pipe, so that its servers, kernels and browsers end with it, also when it is killed
and can clean up nothing itself. Kernels are process groups of their own, and outlive the server that started them:
this process adopts such orphans (a subreaper), which keeps all of them below it. Linux only.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress

import psutil

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
GRACE_S = 5.0


def main(command):
    """The exit status of `command`, or 1 when it was ended."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    # Not killed together with the test by a signal to the group: this process has something left to do.
    os.setsid()
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=_end_with_parent)
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    threading.Thread(target=_wait_for_the_end_of_input, args=(child,), daemon=True).start()
    status = child.wait()
    _end_all()
    return status if status >= 0 else 1


def _wait_for_the_end_of_input(child):
    while os.read(0, 4096):
        pass
    with suppress(ProcessLookupError):
        child.terminate()
    try:
        child.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        child.kill()


def _end_all():
    """Kill what is left below, more than once: a process may start another while it is being ended."""
    for _ in range(20):
        left = psutil.Process().children(recursive=True)
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        if not psutil.wait_procs(left, timeout=GRACE_S)[1] and not psutil.Process().children():
            return


def _end_with_parent():
    # Should this process itself be killed, the command ends too.
    _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _prctl(option, value):
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
