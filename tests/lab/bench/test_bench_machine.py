"""The machine between and beside runs, as amd-smi and nvidia-smi tell it; stand-ins print what the real ones print."""

import json
import os
import sys
from dataclasses import replace

import pytest
from bench_driver import bench, one_line, result_files, write_recipe
from processes import wait_gone

from latent_moe.errors import LatentMoEError
from latent_moe.lab import doctor
from latent_moe.lab.bench import machine

NVIDIA = """
import os, sys
assert sys.argv[1].startswith("--query-gpu=index,memory.used,memory.total,clocks.sm"), sys.argv
assert sys.argv[2] == "--format=csv,noheader,nounits"
print(f"0, {os.environ.get('SMI_USED', '4')}, 143771, 1980, 3201, 690.25, 700.00, 61, {os.environ.get('SMI_REASONS', '0x0000000000000000')}")
print("1, 4, 143771, 345, 3201, [N/A], 700.00, 33, 0x0000000000000001")
"""
AMD = """
import json, os, sys, time
gpu = {"gpu": 0, "power": {"socket_power": {"value": 1210, "unit": "W"}, "throttle_status": "UNTHROTTLED"},
 "clock": {"gfx_0": {"clk": {"value": 2395, "unit": "MHz"}}, "mem_0": {"clk": {"value": 1900, "unit": "MHz"}}},
 "temperature": {"edge": "N/A", "hotspot": {"value": 71, "unit": "C"}, "mem": {"value": 55, "unit": "C"}},
 "mem_usage": {"total_vram": {"value": 294896, "unit": "MB"}, "used_vram": {"value": 284, "unit": "MB"}},
 "energy": {"total_energy_consumption": {"value": 1000.0 + time.monotonic(), "unit": "J"}},
 "throttle": {"ppt_accumulated": time.monotonic_ns() if os.environ.get("SMI_CAPPED") else 7,
 "hbm_thermal_accumulated": 0, "hbm_thermal_violation_status": "NOT ACTIVE"}}
limit = {"gpu": 0, "limit": {"max_power": {"value": 1400, "unit": "W"}, "socket_power": {"value": 1400, "unit": "W"}}}
listed = [limit if sys.argv[1] == "static" else gpu]
print(json.dumps({"gpu_data": listed} if os.environ.get("SMI_ROCM_7") else listed))
"""


@pytest.fixture
def tool(tmp_path, monkeypatch):
    """Puts a stand-in for a tool on the PATH."""

    def put(name: str, program: str) -> None:
        path = tmp_path / "smi" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!{sys.executable}\n{program}")
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")

    return put


def test_nvidia_smi_is_read(tool, monkeypatch):
    tool("nvidia-smi", NVIDIA)
    monkeypatch.setenv("SMI_REASONS", "0x0000000000000044")
    first, second = machine.device_states()
    assert (first.index, first.used_bytes, first.total_bytes) == (0, 4 << 20, 143771 << 20)
    assert (first.clock_mhz, first.power_w, first.power_cap_w, first.temperature_c) == (1980, 690.25, 700, 61)
    assert first.throttling == ("power cap", "thermal (hardware)")
    assert (second.power_w, second.throttling) == (None, ()), "idle is no throttling, and no number is none"


@pytest.mark.parametrize("newer", ["", "1"])
def test_amd_smi_is_read(tool, monkeypatch, newer):
    tool("amd-smi", AMD)
    monkeypatch.setenv("SMI_ROCM_7", newer)
    (state,) = machine.device_states()
    assert (state.used_bytes, state.clock_mhz, state.memory_clock_mhz) == (284 << 20, 2395, 1900)
    assert (state.power_w, state.power_cap_w, state.temperature_c) == (1210, 1400, 71)
    assert state.energy_j > 1000
    assert state.throttling == ()


@pytest.mark.parametrize("program", ["raise SystemExit(9)", "print('No devices were found')", "print('{')"])
def test_a_tool_that_fails_says_nothing(tool, program):
    tool("amd-smi", program)
    assert machine.device_states() == []


def test_a_run_has_the_machine_beside_it_and_is_marked_when_throttled(tmp_path, tool):
    tool("amd-smi", AMD)
    out, mark = tmp_path / "out", f"smi-{os.getpid()}"
    done = bench(write_recipe(tmp_path), out, mark=mark, SMI_CAPPED="1")
    assert done.returncode == 0, done.stderr
    for text in result_files(out).values():
        run = json.loads(text)
        devices = run["latent_moe"]["devices"]
        assert devices["throttled"] == ["ppt_accumulated"]
        assert devices["before"][0]["power_cap_w"] == 1400
        assert devices["after"][0]["temperature_c"] == 71
        tokens = run["total_input_tokens"] + run["total_output_tokens"]
        assert devices["energy_j"] > 0
        assert devices["energy_j_per_token"] == pytest.approx(devices["energy_j"] / tokens)
    assert "throttled (ppt_accumulated)" in done.stderr


def test_energy_without_a_counter_is_missing(tool):
    tool("nvidia-smi", NVIDIA)
    record = machine.DeviceLog().record(100)
    assert record["energy_j"] is None
    assert "energy_j_per_token" not in record
    assert record["throttled"] == []


def test_without_a_tool_nothing_is_recorded(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert machine.DeviceLog().record(100) is None


def test_a_server_waits_until_the_last_one_gave_its_memory_back():
    idle = machine.DeviceState(3, used_bytes=1 << 20)
    looks = [[replace(idle, used_bytes=50 << 30)], [replace(idle, used_bytes=2 << 20)]]
    machine.wait_until_free([idle], 5, lambda: looks.pop(0))
    assert looks == []
    with pytest.raises(LatentMoEError, match=r"device 3 holds 50\.0 GiB more than before the first server"):
        machine.wait_until_free([idle], 0.1, lambda: [replace(idle, used_bytes=(50 << 30) + (1 << 20))])


def test_memory_that_is_taken_before_the_first_server_is_said(tmp_path, tool):
    tool("nvidia-smi", NVIDIA)
    done = bench(write_recipe(tmp_path), tmp_path / "out", mark=f"taken-{os.getpid()}", SMI_USED="70000")
    assert done.returncode == 0, done.stderr
    assert "device 0: 68.4 of 140 GiB are in use already" in done.stderr


def test_room_in_shared_memory_is_checked_by_doctor_and_before_a_start(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "shm_free_bytes", lambda: 64 << 20)
    monkeypatch.setattr(doctor, "shm_free_bytes", lambda: 64 << 20)
    check = doctor._shared_memory()
    assert not check.ok
    assert (
        "/dev/shm has 64 MiB free, vLLM's ranks want 160: start the container with --ipc=host" in check.hint
    )
    recipe = write_recipe(tmp_path, server_args=', "--tensor-parallel-size", "2"')
    done = bench(recipe, tmp_path / "out", mark="room")
    assert done.returncode == 1
    assert "server one: /dev/shm has 64 MiB free" in one_line(done)
    assert bench(write_recipe(tmp_path), tmp_path / "one_rank", mark=f"one-{os.getpid()}").returncode == 0


def test_what_a_server_leaves_in_shared_memory_is_removed(tmp_path):
    if not machine.SHM.is_dir():
        pytest.skip("no /dev/shm here")
    name, mark = f"latent_moe_test_{os.getpid()}", f"left-{os.getpid()}"
    others = machine.SHM / f"{name}_of_others"
    others.touch()
    try:
        recipe = write_recipe(tmp_path, one_env=f', STAND_IN_SHM = "{name}"')
        assert bench(recipe, tmp_path / "out", mark=mark).returncode == 0
        assert not (machine.SHM / name).exists()
        assert others.exists()
    finally:
        others.unlink()
        (machine.SHM / name).unlink(missing_ok=True)


def test_the_first_start_is_thrown_away(tmp_path):
    recipe, out, mark = write_recipe(tmp_path), tmp_path / "out", f"discard-{os.getpid()}"
    recipe.write_text(recipe.read_text().replace("discard_first = false\n", ""))
    dry = bench(recipe, out, "--dry-run", "--json", mark="unused")
    sessions = json.loads(dry.stdout)["sessions"]
    assert [(each["arm"], each["pair"]) for each in sessions] == [("one", 0), ("one", 1), ("two", 1)]
    assert [each["kind"] for each in sessions[0]["commands"]] == ["server", "discarded", "discarded"]
    assert not set(sessions[0]["seeds"]) & {seed for each in sessions[1:] for seed in each["seeds"]}
    log = tmp_path / "received"
    done = bench(recipe, out, mark=mark, STAND_IN_RECEIVED=str(log))
    assert done.returncode == 0, done.stderr
    assert "the start that is thrown away: one is up" in done.stderr
    assert len(log.read_text().splitlines()) == sum(len(each["commands"]) for each in sessions)
    assert len(result_files(out)) == 4
    assert [path.name for path in (out / "logs").glob("discarded*")] == ["discarded_one_1"]
    assert bench(recipe, out, "--resume", "--pairs", "2", mark=mark).returncode == 0
    assert len(list((out / "logs").glob("discarded*"))) == 2, "each bench begins with one"
    logs = len(list((out / "logs").iterdir()))
    assert bench(recipe, out, "--resume", "--pairs", "2", mark=mark).returncode == 0
    assert len(list((out / "logs").iterdir())) == logs, "nothing is thrown away where nothing is measured"


def test_an_arm_that_does_not_start_leaves_the_others_pairs(tmp_path):
    recipe, out, mark = write_recipe(tmp_path, pairs=2), tmp_path / "out", f"fails-{os.getpid()}"
    with recipe.open("a") as file:
        env = '{ LATENT_MOE_TAIL = "auto", STAND_IN_FAULT = "loading" }'
        file.write(f'[arms.three]\nrole = "candidate"\nenv = {env}\n')
    done = bench(recipe, out, mark=mark)
    assert done.returncode == 1
    assert "server three died before it was ready (exit code 3): ValueError: no such file" in one_line(done)
    assert "three is left out" in done.stderr
    assert sorted(result_files(out)) == [
        f"{a}_pair{p}_c{c}.json" for a in ("one", "two") for p in (1, 2) for c in (2, 3)
    ]
    assert len(list((out / "logs").glob("*_three_*"))) == 1, "it is not tried again"
    assert wait_gone(mark, 5) == []
