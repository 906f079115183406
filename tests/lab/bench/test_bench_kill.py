"""A benchmark that is interrupted, killed or fails leaves no process behind and no half-written result."""

import os
import signal
import subprocess
import sys
import time

import pytest
from processes import MARK, survivors, wait_gone

from latent_moe.lab.bench import supervisor
from latent_moe.lab.bench.machine import free_ports
from latent_moe.lab.bench.server import Server, ServerError, SupervisedProcess

FAMILY = "import subprocess,sys,time; subprocess.Popen(['sleep','600'], start_new_session=True); print('up', flush=True); time.sleep(600)"
PARENT = f"""
import sys, time
from pathlib import Path
from latent_moe.lab.bench.server import SupervisedProcess
supervised = SupervisedProcess([sys.executable, "-c", {FAMILY!r}], {{}}, Path(sys.argv[1]))
print("started", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_server_ends_with_its_parent_however_that_goes(tmp_path, number):
    mark = f"{os.getpid()}-{number}"
    log = tmp_path / "server.log"
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(log)], env={**os.environ, MARK: mark}, stdout=subprocess.PIPE
    )
    assert parent.stdout.readline() == b"started\n"
    deadline = time.monotonic() + 30
    while not (log.exists() and log.read_text().endswith("up\n")) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(survivors(mark)) >= 4, "parent, supervisor, server and the process that left its session"
    parent.send_signal(number)
    parent.wait(10)
    assert wait_gone(mark) == []


BLIND = """
import subprocess, sys, time
from latent_moe.lab.bench import supervisor
stays = "import pathlib, signal, sys, time\\nsignal.signal(signal.SIGTERM, lambda *_: (pathlib.Path(sys.argv[1]).touch(), sys.exit()))"
stays += "\\nprint('up', flush=True)\\ntime.sleep(600)"
first = supervisor.start([sys.executable, "-c", "pass"])
first.wait()
orphan = subprocess.Popen([sys.executable, "-c", stays, sys.argv[1]], start_new_session=True, stdout=subprocess.PIPE)
orphan.stdout.readline()
look, looks = supervisor.descendants, []
supervisor.descendants = lambda pid: look(pid) if looks else looks.append(pid) or []
supervisor.end(first, 600)
"""


def test_a_process_that_one_look_missed_is_asked_to_end_by_the_next(tmp_path):
    asked = tmp_path / "asked"
    subprocess.run([sys.executable, "-c", BLIND, str(asked)], timeout=60, check=True)
    assert asked.exists()


COUNTS = """
import pathlib, signal, sys, time
heard = []
signal.signal(signal.SIGTERM, lambda *_: heard.append(1))
print("up", flush=True)
while not heard:
    time.sleep(0.05)
time.sleep(1)
pathlib.Path(sys.argv[1]).write_text(str(len(heard)))
"""


def test_a_server_hears_once_that_it_is_to_end(tmp_path):
    process = SupervisedProcess(
        [sys.executable, "-c", COUNTS, str(tmp_path / "heard")], {}, tmp_path / "server.log"
    )
    deadline = time.monotonic() + 30
    while not process.tail().endswith("up") and time.monotonic() < deadline:
        time.sleep(0.05)
    process.stop()
    assert (tmp_path / "heard").read_text() == "1"


def test_a_full_disk_under_the_log_stops_no_server(tmp_path):
    talks = "for _ in range(20_000): print('x' * 99)"
    supervised = [sys.executable, supervisor.__file__, "/dev/full", "--", sys.executable, "-c", talks]
    with subprocess.Popen(supervised, stdin=subprocess.PIPE) as process:
        assert process.wait(60) == 0


def test_a_server_that_dies_is_reported_with_its_last_lines(tmp_path):
    script = "print('loading'); print('no such device: cuda:7'); raise SystemExit(3)"
    process = SupervisedProcess([sys.executable, "-c", script], {}, tmp_path / "server.log")
    with (
        Server("candidate", process, f"http://127.0.0.1:{free_ports(1)[0]}") as server,
        pytest.raises(ServerError, match="exit code 3") as caught,
    ):
        server.wait_healthy(30)
    assert "no such device: cuda:7" in caught.value.log_tail


def test_a_server_that_never_answers_is_given_up(tmp_path):
    process = SupervisedProcess(
        [sys.executable, "-c", "import time; time.sleep(600)"], {}, tmp_path / "server.log"
    )
    with (
        Server("candidate", process, f"http://127.0.0.1:{free_ports(1)[0]}") as server,
        pytest.raises(ServerError, match="not ready within 1 s"),
    ):
        server.wait_healthy(1)
    assert process.exit_code is not None


def test_logs_hide_what_the_server_prints_of_its_secrets(tmp_path):
    script = "import os; print('token', os.environ['HF_TOKEN'])"
    process = SupervisedProcess(
        [sys.executable, "-c", script], {"HF_TOKEN": "hf_secret_1"}, tmp_path / "server.log", ["hf_secret_1"]
    )
    process.wait(20)
    process.stop()
    assert process.tail().endswith("token ***")


@pytest.mark.vllm
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_bench_interrupted_during_a_real_start_leaves_nothing(tmp_path, number):
    pytest.importorskip("vllm")
    mark = f"bench-{os.getpid()}-{number}"
    out = tmp_path / "out"
    bench = subprocess.Popen(
        [sys.executable, "-m", "latent_moe", "bench", "cpu_quick", "--out", str(out)],
        env={**os.environ, MARK: mark},
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not list(out.glob("logs/*/server.log")) and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(3)
    assert any("api_server" in line for line in survivors(mark))
    bench.send_signal(number)
    assert bench.wait(60) == (-number if number == signal.SIGKILL else 130)
    assert wait_gone(mark) == []
    assert list(out.rglob("*.part")) == []
    assert list(out.glob("runs/*.json")) == []
