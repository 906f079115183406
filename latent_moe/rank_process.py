"""What runs in a rank's process: join the group, call the function, send one message, leave."""

import multiprocessing as mp
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from typing import Any

from latent_moe.errors import InputError

_ORPHANED = 3


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
