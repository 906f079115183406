"""Real ranks: right sums, counted bytes, one clear error, and no process left behind."""

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import core_ranks
import pytest
import torch

from latent_moe.errors import InputError, LatentMoEError
from latent_moe.parallel import TensorParallel, launch


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_collectives(tp, monkeypatch):
    monkeypatch.setenv("CORE_TEST", f"now {tp}")
    rows = 2 * tp
    x = torch.arange(rows * 3, dtype=torch.float32).reshape(rows, 3)
    total = sum(x + rank for rank in range(tp))
    for rank, (summed, mine, equal, issued, environment) in enumerate(launch(core_ranks.collectives, tp)):
        assert torch.equal(summed, total)
        assert torch.equal(mine, total[2 * rank : 2 * rank + 2])
        assert all(equal)
        kinds = ["all_reduce", "reduce_scatter", "all_gather"]
        assert issued == (
            [(kind, rows * 3 * 4) for kind in kinds * 1] + _asynchronous(rows) if tp > 1 else []
        )
        assert environment == f"now {tp}"


def _asynchronous(rows):
    return [(kind, rows * 3 * 4) for kind in ("all_reduce", "reduce_scatter", "all_gather")]


def test_columns():
    tp = TensorParallel(rank=2, size=4)
    assert tp.columns(64) == slice(32, 48)
    with pytest.raises(InputError, match="tp 4 does not divide 66"):
        tp.columns(66)


@pytest.mark.parametrize(
    ("how", "error", "message"),
    [
        ("raise", LatentMoEError, "rank 1 failed: ValueError: boom"),
        ("input", InputError, "the batch is empty"),
        ("exit", LatentMoEError, "rank 1 died with exit code 7"),
        ("kill", LatentMoEError, "rank 1 died of signal SIGKILL"),
        ("sleep", LatentMoEError, r"rank \d gave no result within 3 s"),
    ],
)
def test_one_clear_error_and_nobody_left(how, error, message, tmp_path):
    started = time.monotonic()
    limit = 3 if how == "sleep" else 60
    with pytest.raises(error, match=message):
        launch(core_ranks.misbehave, 4, how, str(tmp_path), timeout_s=limit)
    assert time.monotonic() - started < 30  # far from the limit of a collective that nobody joins
    pids = _pids(tmp_path, 4)
    assert not [pid for pid in pids if _alive(pid)]


@contextmanager
def _launching(folder):
    """A process that has launched two ranks, which sleep, and their pids; ended in the end."""
    code = "import core_ranks; from latent_moe.parallel import launch; import sys;"
    code += "launch(core_ranks.misbehave, 2, 'sleep', sys.argv[1])"
    environment = os.environ | {"PYTHONPATH": os.path.dirname(__file__), "TMPDIR": str(folder)}
    parent = subprocess.Popen(
        [sys.executable, "-c", code, str(folder)], env=environment, stderr=subprocess.DEVNULL
    )
    try:
        yield parent, _pids(folder, 2)
    finally:
        parent.kill()
        parent.wait()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_ranks_end_with_the_process_that_launched_them(number, tmp_path):
    with _launching(tmp_path) as (parent, pids):
        parent.send_signal(number)
        assert parent.wait(30) != 0
    assert _gone(pids)
    if number != signal.SIGKILL:
        assert not list(tmp_path.glob("latent_moe_*"))


def test_a_second_signal_does_not_cut_short_what_the_first_began(tmp_path):
    with _launching(tmp_path) as (parent, pids):
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGTERM):
            parent.send_signal(number)
            time.sleep(0.01)
        assert parent.wait(30) in (128 + signal.SIGTERM, 128 + signal.SIGHUP)
    assert _gone(pids)
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


@pytest.mark.parametrize("tp", [0, -1, 65, 2.0])
def test_number_of_ranks(tp):
    with pytest.raises(InputError, match="ranks can be launched"):
        launch(core_ranks.collectives, tp)


def test_what_cannot_be_sent_is_said():
    with pytest.raises(InputError, match="cannot be sent to a rank"):
        launch(lambda tp: None, 2)


def _pids(folder, count, limit_s=60):
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        texts = [path.read_text() for path in folder.glob("*.pid")]
        if len(texts) == count and all(texts):
            return [int(text) for text in texts]
        time.sleep(0.05)
    raise AssertionError("the ranks did not start")


def _gone(pids, limit_s=10):
    deadline = time.monotonic() + limit_s
    while any(_alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not any(_alive(pid) for pid in pids)


def _alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
