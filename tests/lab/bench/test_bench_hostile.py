"""What people do to a running benchmark: nothing is left running, nothing is lost, and the reason is one line."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from bench_driver import Done, bench, environment, one_line, result_files, words, write_recipe
from processes import survivors, wait_gone

from latent_moe.lab.bench.server import ServerError, SupervisedProcess, first_error

WORKER = "os.setsid()"


def marked(mark: str, text: str) -> list[psutil.Process]:
    """The processes of a bench whose command line holds `text`."""
    processes = []
    for process in psutil.process_iter():
        try:
            if mark in process.environ().values() and text in " ".join(process.cmdline()):
                processes.append(process)
        except psutil.Error:
            continue
    return processes


class Running:
    """A bench in a process of its own whose first measured run takes a minute."""

    def __init__(self, folder: Path, mark: str, **env: str):
        self.out, self.mark = folder / "out", mark
        self.recipe = write_recipe(folder)
        env = {"STAND_IN_CLIENT": "slow", "STAND_IN_RECEIVED": str(folder / "received"), **env}
        self.process = subprocess.Popen(
            words(self.recipe, self.out), env=environment(mark, **env), stderr=subprocess.PIPE, text=True
        )
        deadline = time.monotonic() + 60
        # The server's start, the warm-up and the run have begun.
        while self.commands(folder) < 3 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert self.commands(folder) == 3

    @staticmethod
    def commands(folder: Path) -> int:
        path = folder / "received"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def ends(self, seconds: float = 60) -> Done:
        """How it ended; every process of it is gone then."""
        _, text = self.process.communicate(timeout=seconds)
        assert wait_gone(self.mark) == []
        assert list(self.out.rglob("*.part")) == []
        return Done(self.process.returncode, "", text)


@pytest.fixture
def running(tmp_path, request):
    return Running(tmp_path, f"hostile-{os.getpid()}-{request.node.name}")


def test_a_worker_that_is_stopped_ends_the_run_within_two_minutes_with_its_name(running):
    (worker,) = marked(running.mark, WORKER)
    began = time.monotonic()
    worker.suspend()
    done = running.ends(120)
    assert time.monotonic() - began < 120
    assert done.returncode == 1
    assert (
        f"server one was ended while one was measured at concurrency 2: its process {worker.pid} ("
        in done.stderr
    )
    assert "is stopped (SIGSTOP)" in one_line(done)


def test_a_supervisor_that_is_killed_takes_the_server_with_it(running):
    (supervisor,) = [
        p for p in marked(running.mark, "supervisor.py") if "server.log" in " ".join(p.cmdline())
    ]
    supervisor.kill()
    done = running.ends()
    assert done.returncode == 1
    assert "server one died while one was measured at concurrency 2 (exit code -9)" in one_line(done)


def test_the_kernel_ends_a_server_whose_supervisor_and_bench_are_killed(running):
    (server,) = [
        p for p in marked(running.mark, "api_server") if "supervisor.py" not in " ".join(p.cmdline())
    ]
    (worker,) = marked(running.mark, WORKER)
    running.process.kill()
    for supervisor in marked(running.mark, "supervisor.py"):
        supervisor.kill()
    server.wait(10)
    worker.kill()  # vLLM's own workers leave with their parent
    running.ends()


def test_a_command_that_is_killed_leaves_nothing(running):
    running.process.kill()
    assert running.ends().returncode == -signal.SIGKILL


def test_a_worker_that_is_killed_leaves_nothing(running):
    (worker,) = marked(running.mark, WORKER)
    worker.kill()
    running.process.send_signal(signal.SIGINT)
    assert running.ends().returncode == 130


def test_ctrl_c_twice_leaves_nothing(tmp_path, request):
    running = Running(tmp_path, f"hostile-{os.getpid()}-{request.node.name}", STAND_IN_LEAVES_AFTER_S="3")
    running.process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    running.process.send_signal(signal.SIGINT)
    done = running.ends()
    assert done.returncode == 130
    assert "Traceback" not in done.stderr


def test_a_second_bench_in_the_same_folder_is_refused(running):
    for options in ((), ("--resume",)):
        done = bench(running.recipe, running.out, *options, mark="second")
        assert done.returncode == 2
    assert f"a bench is at work in {running.out} (process {running.process.pid})" in one_line(done)
    assert survivors("second") == []
    running.process.send_signal(signal.SIGINT)
    running.ends()
    assert bench(running.recipe, running.out, "--resume", mark=running.mark).returncode == 0


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path):
    disk, mark = tmp_path / "disk", f"disk-{os.getpid()}"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("this user may mount nothing")
    try:
        fill = threading.Thread(target=fill_up, args=(disk,), daemon=True)
        fill.start()
        done = bench(write_recipe(tmp_path), disk / "out", mark=mark)
        assert done.returncode in (1, 2)
        assert "no space left" in one_line(done).lower()
        assert wait_gone(mark) == []
        assert list(disk.rglob("*.part")) == []
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def fill_up(disk: Path) -> None:
    """Take the room that is left once the first session runs."""
    deadline = time.monotonic() + 30
    while not list(disk.glob("out/logs/*/server.log")) and time.monotonic() < deadline:
        time.sleep(0.02)
    with (disk / "filler").open("wb", buffering=0) as file:
        for size in (4096, 256, 1):
            while True:
                try:
                    file.write(b"x" * size)
                except OSError:
                    break


SHARING = """
import http.server, socket, sys
class Server(http.server.ThreadingHTTPServer):
    allow_reuse_address = True
    def server_bind(self):
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        super().server_bind()
class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_): pass
server = Server(("127.0.0.1", int(sys.argv[1])), Handler)
server.serve_forever()
"""


def test_a_port_that_another_server_shares_is_seen(tmp_path):
    """vLLM's socket shares its port (SO_REUSEPORT): a second server answers some of the requests."""
    mark = f"shared-{os.getpid()}"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    recipe = write_recipe(tmp_path, server_args=f', "--port", "{port}"')
    recipe.write_text(recipe.read_text().replace("[server]\n", f"[server]\nport = {port}\n"))
    other, env = [], dict(os.environ)

    def share() -> None:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and not marked(mark, "api_server"):
            time.sleep(0.02)
        other.append(subprocess.Popen([sys.executable, "-c", SHARING, str(port)], env=env))

    thread = threading.Thread(target=share)
    thread.start()
    done = bench(recipe, tmp_path / "out", mark=mark, STAND_IN_CLIENT="slow", STAND_IN_SHARES_PORT="1")
    thread.join()
    try:
        assert done.returncode == 1, done.stderr
        assert f"server one shares port {port} with process {other[0].pid} (python" in one_line(done)
        assert wait_gone(mark) == []
    finally:
        other[0].kill()
        other[0].wait()


@pytest.mark.parametrize(
    "name", ["x" * 300, "with\0nul", "no\udcffutf8", "new\nline", "-dash", "deep/" * 300 + "x"]
)
def test_no_name_of_an_output_folder_is_a_traceback(tmp_path, name):
    recipe = write_recipe(tmp_path)
    for options in (["--dry-run"], ["--resume"]):
        code = subprocess.run(
            [sys.executable, "-c", CALL, str(recipe), json.dumps(str(tmp_path / name)), *options],
            env=environment("names"),
            capture_output=True,
            text=True,
        )
        assert code.returncode in (0, 2), code.stderr
        assert "Traceback" not in code.stderr
        if options == ["--resume"]:
            assert code.returncode == 2
            assert len(code.stderr.splitlines()) == 1


CALL = """
import json, sys
from latent_moe.cli import main
recipe, out, *options = sys.argv[1:]
sys.exit(main(["bench", recipe, f"--out={json.loads(out)}", *options]))
"""


def test_the_engines_first_error_and_the_logs_place_are_in_the_line(tmp_path):
    recipe = write_recipe(tmp_path, one_env=', STAND_IN_FAULT = "root cause above"')
    done = bench(recipe, tmp_path / "out", mark=f"first-{os.getpid()}")
    assert done.returncode == 1
    (log,) = (tmp_path / "out" / "logs").glob("*/server.log")
    assert "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 20.00 GiB" in one_line(done)
    assert str(log) in one_line(done)


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (
            "(Worker_TP1 pid=9) ERROR 12-01 10:00:00 [x.py:1] ValueError: no such head",
            "ValueError: no such head",
        ),
        ("RuntimeError: Engine core initialization failed. See root cause above.", None),
        ("KeyError", None),
        (
            "vllm.v1.engine.exceptions.EngineDeadError: EngineCore is dead",
            "vllm.v1.engine.exceptions.EngineDeadError: EngineCore is dead",
        ),
    ],
)
def test_what_counts_as_an_error(line, error):
    assert first_error(f"the command: ValueError: none\n{line}\n") == error


def test_a_run_file_that_cannot_be_read_is_measured_again(tmp_path):
    recipe, out, mark = write_recipe(tmp_path, pairs=2), tmp_path / "out", f"empty-{os.getpid()}"
    assert bench(recipe, out, mark=mark).returncode == 0
    before = result_files(out)
    (out / "runs" / "one_pair1_c2.json").write_text("")
    assert bench(recipe, out, "--resume", mark=mark).returncode == 0
    after = result_files(out)
    assert json.loads(after["one_pair1_c2.json"])["completed"] == 4
    assert {name: after[name] for name in before if "pair2" in name} == {
        name: text for name, text in before.items() if "pair2" in name
    }


def test_time_limits_title_and_notes_may_change_before_a_resume(tmp_path):
    recipe, out, mark = write_recipe(tmp_path), tmp_path / "out", f"limits-{os.getpid()}"
    assert bench(recipe, out, mark=mark).returncode == 0
    text = recipe.read_text().replace("timeout_s = 60", "timeout_s = 61")
    text = text.replace("startup_timeout_s = 30", "startup_timeout_s = 31").replace("Both arms", "All arms")
    recipe.write_text(text.replace('title = "', 'notes = "said later"\ntitle = "'))
    assert bench(recipe, out, "--resume", "--pairs", "2", mark=mark).returncode == 0
    assert len(result_files(out)) == 8
    recipe.write_text(text.replace("prompts_per_concurrency = 2", "prompts_per_concurrency = 3"))
    done = bench(recipe, out, "--resume", mark=mark)
    assert done.returncode == 2
    assert "another recipe: client.prompts_per_concurrency was 2, not 3" in one_line(done)


def test_runs_of_one_arm_are_never_of_two_versions(tmp_path):
    recipe, out, mark = write_recipe(tmp_path), tmp_path / "out", f"versions-{os.getpid()}"
    assert bench(recipe, out, mark=mark, STAND_IN_VERSION="0.26.0").returncode == 0
    before = result_files(out)
    done = bench(recipe, out, "--resume", "--pairs", "2", mark=mark)
    assert done.returncode == 1
    assert f"is version 0.32.0, its runs in {out} are of 0.26.0" in one_line(done)
    assert result_files(out) == before
    assert wait_gone(mark, 5) == []


def test_what_a_killed_supervisor_leaves_is_ended(tmp_path):
    leaver = "import subprocess, time; subprocess.Popen(['sleep', '600'], start_new_session=True); print('up', flush=True); time.sleep(600)"
    process = SupervisedProcess([sys.executable, "-c", leaver], {}, tmp_path / "log")
    deadline = time.monotonic() + 20
    while not process.tail().endswith("up") and time.monotonic() < deadline:
        time.sleep(0.05)
    tree = process.tree()
    assert len(tree) == 2
    assert {each.pid for each in process.left()} > {each.pid for each in tree}, "and the supervisor"
    psutil.Process(process._process.pid).kill()
    process.stop()
    assert psutil.wait_procs(tree, 5)[1] == []
    assert process.left() == []


def test_the_next_server_waits_for_the_last_ones_processes(tmp_path, monkeypatch):
    from types import SimpleNamespace

    from latent_moe.lab.bench import bench as module

    looks = [[SimpleNamespace(pid=7)], []]
    process = SimpleNamespace(left=lambda: looks.pop(0), tail=lambda: "")
    session = SimpleNamespace(server=SimpleNamespace(process=process), entry=SimpleNamespace(arm="one"))
    module._wait_gone(session)
    assert looks == []
    monkeypatch.setattr(module, "_FREE_S", 0.1)
    looks += [[SimpleNamespace(pid=7)]] * 9
    with pytest.raises(ServerError, match="processes 7 of server one do not end"):
        module._wait_gone(session)
