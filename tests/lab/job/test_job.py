"""Ranks that torchrun or srun started: one host and two, the right sums, and every way in which a job can break."""

import gzip
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import job_command
import psutil
import pytest
from two_hosts import ADDRESSES, agents, ended, two_hosts

from latent_moe.errors import InputError
from latent_moe.lab.job import first_host, place_of
from latent_moe.lab.recordings import load_manifest
from latent_moe.lab.traces import read_trace
from latent_moe.parallel import launch

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "x",
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_WORLD_SIZE": "2",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}
SRUN = {
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "16",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_PROCID": "9",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_NODELIST": "gpu[07-08]",
}


def test_the_places_that_launchers_say():
    place = place_of(TORCHRUN)
    assert (place.rank, place.size, place.local_rank, place.nodes) == (3, 4, 1, 2)
    assert (place.address, place.port, place.agent_store) == ("10.0.0.1", 29500, True)
    place = place_of(SRUN)
    assert (place.rank, place.size, place.local_rank, place.local_size, place.nodes) == (9, 16, 1, 8, 2)
    assert (place.address, place.agent_store) == ("gpu07", False)
    assert place.port == place_of(SRUN | {"SLURM_PROCID": "0"}).port
    assert place_of(SRUN | {"MASTER_ADDR": "here", "MASTER_PORT": "1234"}).port == 1234
    # One task, a batch script outside srun, a plain shell: no job.
    assert place_of(TORCHRUN | {"WORLD_SIZE": "1"}) is None
    assert place_of({"SLURM_JOB_ID": "77", "SLURM_PROCID": "0", "SLURM_NTASKS": "16"}) is None
    assert place_of({}) is None
    with pytest.raises(InputError, match="launcher's variables"):
        place_of(TORCHRUN | {"RANK": "three"})


@pytest.mark.parametrize(
    ("hosts", "first"),
    [("gpu[07-08]", "gpu07"), ("a,b", "a"), ("n[3,5-9],m1", "n3"), ("one", "one")],
)
def test_the_first_host_of_a_list(hosts, first):
    assert first_host(hosts) == first


def one_host(*command: str, ranks: int = 2) -> subprocess.CompletedProcess:
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    return subprocess.run(
        [*words, "-m", *command], capture_output=True, text=True, timeout=100, env=environment
    )


def test_one_host_gives_what_the_local_launcher_gives():
    done = one_host("job_command", "twice")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)  # rank 0 printed, and nobody else
    assert answer["same"]
    assert answer["ranks"] == json.loads(json.dumps(launch(job_command.every_tail, 2)))


@pytest.mark.parametrize(
    ("how", "line"),
    [
        ("raise", r"latent-moe: rank 1 on \S+ \(\S+\) failed: ValueError: boom"),
        ("input", "latent-moe: the batch is empty"),
        ("sleep", r"latent-moe: rank 1 on \S+ \(\S+\) gave no result within 5 s"),
        ("other size", "refused: tp 3: this job has 2 ranks"),
    ],
)
def test_what_goes_wrong_is_named(how, line):
    begin = time.monotonic()
    done = one_host("job_command", how)
    assert done.returncode == 1  # torchrun's own code for any failure
    assert re.search(line, done.stderr), done.stderr
    assert time.monotonic() - begin < 60


def test_the_verb_under_torchrun_prints_once():
    done = one_host("latent_moe", "verify", "--json", "--seed", "3", "--dtype", "float32")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert (answer["ok"], answer["tp"], answer["seed"]) == (True, 2, 3)
    assert done.stderr.count("verify: seed 3") == 1


def test_srun_variables_alone_make_a_job():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    step = SRUN | {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "1", "MASTER_PORT": str(port)}
    step |= {"MASTER_ADDR": "127.0.0.1", "PYTHONPATH": str(Path(__file__).parent)}
    tasks = [
        subprocess.Popen(
            [sys.executable, "-m", "job_command", "twice"],
            env=os.environ | step | {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [task.communicate(timeout=100)[0] for task in tasks]
    assert [task.returncode for task in tasks] == [0, 0]
    assert outputs[1] == ""
    assert json.loads(outputs[0])["ranks"] == json.loads(json.dumps(launch(job_command.every_tail, 2)))


def text_of(folder: Path, ending: str) -> str:
    return "\n".join(path.read_text() for path in sorted(folder.glob(f"*.{ending}")))


def test_two_hosts_agree_with_one_bit_for_bit(tmp_path):
    with two_hosts() as hosts:
        started = agents(hosts, tmp_path, "job_command", "twice")
        ended(started, 120)
    assert [agent.returncode for agent in started] == [0, 0], text_of(tmp_path, "err")
    answer = json.loads(text_of(tmp_path, "out"))
    assert answer["same"]
    # gloo sums in the order of ranks: the same bits wherever the ranks are, and the same collectives.
    assert answer["ranks"] == json.loads(json.dumps(launch(job_command.every_tail, 4)))


def test_two_hosts_hold_the_bounds_of_verify(tmp_path):
    with two_hosts() as hosts:
        started = agents(hosts, tmp_path, "latent_moe", "verify", "--json")
        ended(started, 120)
    assert [agent.returncode for agent in started] == [0, 0], text_of(tmp_path, "err")
    answer = json.loads(text_of(tmp_path, "out"))
    assert (answer["ok"], answer["tp"]) == (True, 4)
    assert sum(tail["eligible"] for tail in answer["tails"].values()) >= 7


def test_a_recording_of_two_hosts_comes_together_and_says_which_rank_was_where(tmp_path):
    work = ("profile", "--tail", "joint", "--tokens", "4", "--steps", "2", "--out", "recorded", "--json")
    with two_hosts() as hosts:
        started = agents(hosts, tmp_path, "latent_moe", *work, "--preset", "tiny")
        ended(started, 120)
        assert [agent.returncode for agent in started] == [0, 0], text_of(tmp_path, "err")
        # Each host wrote into a folder of its own; rank 0's has them all.
        folder = tmp_path / hosts.names[0] / "recorded"
    manifest = load_manifest(folder)
    assert manifest.parameters["hosts"] == [socket.gethostname()] * 4
    assert sorted(path.name for path in (folder / "joint").iterdir()) == [
        f"rank{rank}.pt.trace.json.gz" for rank in range(4)
    ]
    table = read_trace(folder / "joint").table
    assert table["rank"].nunique() == 4
    with gzip.open(folder / "joint" / "rank3.pt.trace.json.gz") as trace:
        assert json.load(trace)["hostname"] == socket.gethostname()


def workers_of(agent) -> list[psutil.Process]:
    children = psutil.Process(agent.pid).children(recursive=True)
    return [child for child in children if "latent_moe" in child.cmdline()]


def at_work(started, folder: Path) -> list[psutil.Process]:
    """Every process of both hosts, once the ranks are timing tails."""
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        ready = all(agent.poll() is None and len(workers_of(agent)) == 2 for agent in started)
        if ready and "tails: " in text_of(folder, "err"):
            time.sleep(3)
            return [
                process for agent in started for process in (psutil.Process(agent.pid), *workers_of(agent))
            ]
        time.sleep(0.2)
    raise AssertionError(f"the ranks did not start: {text_of(folder, 'err')}")


@pytest.mark.parametrize(
    ("fault", "line"),
    [
        ("rank", rf"rank [23] on \S+ \({ADDRESSES[1]}\) died"),
        ("rank 0", "rank 0 died"),
        (
            "agent",
            rf"rank [23] on \S+ \({ADDRESSES[1]}\) died|the launcher of rank [23] on \S+ \({ADDRESSES[1]}\)",
        ),
        ("link", rf"rank [23] on \S+ \({ADDRESSES[1]}\) gave no sign of life for 18 s"),
    ],
)
def test_what_breaks_on_two_hosts_ends_both_within_thirty_seconds(fault, line, tmp_path):
    work = ("tails", "--preset", "tiny", "--tokens", "1", "--samples", "1000000", "--rounds", "1")
    with two_hosts() as hosts:
        started = agents(hosts, tmp_path, "latent_moe", *work)
        try:
            everybody = at_work(started, tmp_path)
            if fault == "link":
                hosts.cut()
            else:
                victim = {"rank": workers_of(started[1])[1], "agent": psutil.Process(started[1].pid)}
                victim["rank 0"] = next(p for p in workers_of(started[0]) if p.environ()["RANK"] == "0")
                victim[fault].send_signal(signal.SIGKILL)
            begin = time.monotonic()
        finally:
            ended(started, 30)
        _, left = psutil.wait_procs(everybody, timeout=max(0.1, 30 - (time.monotonic() - begin)))
    assert not left
    assert all(agent.returncode for agent in started)
    assert re.search(line, text_of(tmp_path, "err")), text_of(tmp_path, "err")
