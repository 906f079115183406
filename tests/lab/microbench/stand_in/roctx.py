"""A stand-in for rocprofiler-sdk's roctx package: it notes the calls, one file a process."""

import json
import os
import threading
import time
from pathlib import Path


def _note(call, name=None):
    event = {"call": call, "name": name, "ns": time.monotonic_ns(), "thread": threading.get_native_id()}
    with (Path(os.environ["ROCTX_STAND_IN_LOG"]) / f"{os.getpid()}.jsonl").open("a") as file:
        file.write(json.dumps(event) + "\n")


def rangePush(name):
    _note("rangePush", name)


def rangePop():
    _note("rangePop")


def profilerResume(thread):
    _note("profilerResume")


def profilerPause(thread):
    _note("profilerPause")
