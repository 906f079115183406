"""The machine between and beside runs: what its devices hold and do, the room in /dev/shm, free ports.

Devices are asked through amd-smi or nvidia-smi, whichever is on the PATH; without either nothing is known and nothing is
recorded. Clocks in MHz, power in W, temperatures in degrees Celsius, energy in J since the driver started, which amd-smi
counts and nvidia-smi does not (--help-query-gpu on an H200 lists no such field).
"""

import fcntl
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from latent_moe.errors import LatentMoEError

SHM = Path("/dev/shm")
# What vLLM's ranks want there for their message queue (its default: 10 chunks of 16 MiB); docker gives 64 MiB.
SHM_BYTES = 160 << 20
# What a context of a runtime may keep on a device that nobody uses.
_SLACK_BYTES = 1 << 30
_TOOL_S, _SAMPLE_S = 20.0, 30.0
_PORTS = range(20_000, 32_768)
# NVML's clock event reasons that mean: slower than it could be (nvmlClocksEventReasons).
_NVIDIA_REASONS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "thermal (software)",
    0x40: "thermal (hardware)",
    0x80: "power brake",
}
_NVIDIA_FIELDS = (
    *("index", "memory.used", "memory.total", "clocks.sm", "clocks.mem", "power.draw", "power.limit"),
    *("temperature.gpu", "clocks_throttle_reasons.active"),
)


@dataclass(frozen=True)
class DeviceState:
    """One device at one moment; None where the tool does not say. `throttling` names what holds it back, `counters` count
    how long each reason has done so (amd-smi)."""

    index: int
    used_bytes: float | None = None
    total_bytes: float | None = None
    clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    power_w: float | None = None
    power_cap_w: float | None = None
    temperature_c: float | None = None
    energy_j: float | None = None
    throttling: tuple[str, ...] = ()
    counters: Mapping[str, float] | None = None


def device_states() -> list[DeviceState]:
    """The devices now; empty where no tool is there or it fails."""
    for tool, ask in (("amd-smi", _amd), ("nvidia-smi", _nvidia)):
        if shutil.which(tool):
            with suppress(OSError, ValueError, KeyError, TypeError, subprocess.SubprocessError):
                return ask()
    return []


def _output(*words: str) -> str:
    return subprocess.run(words, capture_output=True, text=True, timeout=_TOOL_S, check=True).stdout


def _nvidia() -> list[DeviceState]:
    query = ",".join(_NVIDIA_FIELDS)
    lines = _output("nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits").splitlines()
    return [_nvidia_state([cell.strip() for cell in line.split(",")]) for line in lines if line.strip()]


def _nvidia_state(cells: Sequence[str]) -> DeviceState:
    numbers = dict(zip(_NVIDIA_FIELDS, map(_number, cells), strict=False))
    active = int(cells[-1], 16) if cells[-1].startswith("0x") else 0
    return DeviceState(
        index=int(cells[0]),
        used_bytes=_mebibytes(numbers["memory.used"]),
        total_bytes=_mebibytes(numbers["memory.total"]),
        clock_mhz=numbers["clocks.sm"],
        memory_clock_mhz=numbers["clocks.mem"],
        power_w=numbers["power.draw"],
        power_cap_w=numbers["power.limit"],
        temperature_c=numbers["temperature.gpu"],
        throttling=tuple(reason for bit, reason in _NVIDIA_REASONS.items() if active & bit),
    )


def _amd() -> list[DeviceState]:
    metrics = _per_gpu(json.loads(_output("amd-smi", "metric", "--json")))
    limits: dict[int, dict] = {}
    with suppress(OSError, ValueError, subprocess.SubprocessError):
        listed = _per_gpu(json.loads(_output("amd-smi", "static", "--limit", "--json")))
        limits = {each["gpu"]: each.get("limit") or {} for each in listed}
    return [_amd_state(each, limits.get(each["gpu"], {})) for each in metrics]


def _per_gpu(answer: Any) -> list[dict]:
    """amd-smi's list of devices; since ROCm 7 it stands under gpu_data."""
    return answer["gpu_data"] if isinstance(answer, dict) else answer


def _amd_state(each: Mapping[str, Any], limit: Mapping[str, Any]) -> DeviceState:
    memory, clocks = each.get("mem_usage") or {}, each.get("clock") or {}
    power, temperature = each.get("power") or {}, each.get("temperature") or {}
    throttle = each.get("throttle") or {}
    active = [name for name, value in throttle.items() if name.endswith("_status") and value == "ACTIVE"]
    if power.get("throttle_status") == "THROTTLED":
        active.append("throttle_status")
    counters = {name: _number(value) for name, value in throttle.items() if name.endswith("_accumulated")}
    hotspot, edge = _number(temperature.get("hotspot")), _number(temperature.get("edge"))
    return DeviceState(
        index=each["gpu"],
        used_bytes=_mebibytes(memory.get("used_vram")),
        total_bytes=_mebibytes(memory.get("total_vram")),
        clock_mhz=_number((clocks.get("gfx_0") or {}).get("clk")),
        memory_clock_mhz=_number((clocks.get("mem_0") or {}).get("clk")),
        power_w=_number(power.get("socket_power")),
        power_cap_w=_number(limit.get("socket_power", limit.get("max_power"))),
        temperature_c=edge if hotspot is None else hotspot,
        energy_j=_number((each.get("energy") or {}).get("total_energy_consumption")),
        throttling=tuple(name.removesuffix("_status").removesuffix("_violation") for name in active),
        counters={name: value for name, value in counters.items() if value is not None},
    )


def _number(value: Any) -> float | None:
    """A cell, or amd-smi's {"value", "unit"}; None for N/A."""
    if isinstance(value, dict):
        value = value.get("value")
    with suppress(TypeError, ValueError):
        return float(value)
    return None


def _mebibytes(value: Any) -> float | None:
    number = _number(value)
    return None if number is None else number * 2**20


class DeviceLog:
    """The devices' states from before a run to after it."""

    def __init__(self) -> None:
        self.states = [device_states()]
        self._next = time.monotonic() + _SAMPLE_S

    def sample(self) -> None:
        """Look again, unless the last look was just now."""
        if self.states[0] and time.monotonic() >= self._next:
            self.states.append(device_states())
            self._next = time.monotonic() + _SAMPLE_S

    def record(self, tokens: float | None) -> dict[str, Any] | None:
        """What a run file says: before, after, what held the devices back and the energy a token; None without a tool."""
        if not self.states[0]:
            return None
        self.states.append(device_states())
        first, last = self.states[0], self.states[-1]
        reasons = {reason for states in self.states for state in states for reason in state.throttling}
        for before, after in zip(first, last, strict=False):
            grown, start = after.counters or {}, before.counters or {}
            reasons |= {name for name, count in grown.items() if count > start.get(name, count)}
        record: dict[str, Any] = {
            "before": [asdict(state) for state in first],
            "after": [asdict(state) for state in last],
        }
        record |= {"throttled": sorted(reasons), "energy_j": _energy(first, last)}
        if record["energy_j"] is not None and tokens:
            record["energy_j_per_token"] = record["energy_j"] / tokens
        return record


def _energy(first: Sequence[DeviceState], last: Sequence[DeviceState]) -> float | None:
    """What all devices took between two looks, None unless each one counts."""
    pairs = [(a.energy_j, b.energy_j) for a, b in zip(first, last, strict=False)]
    if not pairs or any(a is None or b is None or b < a for a, b in pairs):
        return None
    return sum(b - a for a, b in pairs if a is not None and b is not None)


def wait_until_free(
    before: Sequence[DeviceState], limit_s: float, look: Callable[[], list[DeviceState]] = device_states
) -> None:
    """Wait until every device holds no more than it did `before` the first server. Raises LatentMoEError naming the device
    and what it holds after `limit_s`."""
    known = {state.index: state.used_bytes for state in before if state.used_bytes is not None}
    deadline = time.monotonic() + limit_s
    while known:
        states = {state.index: state.used_bytes or 0 for state in look()}
        held = {index: states[index] - known[index] for index in known if index in states}
        fullest = max(held, key=lambda index: held[index], default=None)
        if fullest is None or held[fullest] <= _SLACK_BYTES:
            return
        if time.monotonic() > deadline:
            raise LatentMoEError(
                f"device {fullest} holds {held[fullest] / 2**30:.1f} GiB more than before the first server, "
                f"{limit_s:.0f} s after the last one ended"
            )
        time.sleep(0.5)


def in_use(states: Sequence[DeviceState]) -> list[str]:
    """A line for each device of which more than a tenth is taken already."""
    return [
        f"device {each.index}: {each.used_bytes / 2**30:.1f} of {each.total_bytes / 2**30:.0f} GiB are in use already"
        for each in states
        if each.used_bytes and each.total_bytes and each.used_bytes > each.total_bytes / 10
    ]


def shm_free_bytes() -> int | None:
    """The room in /dev/shm, None where there is none."""
    return shutil.disk_usage(SHM).free if SHM.is_dir() else None


def shm_lack(free_bytes: int | None) -> str | None:
    """Why servers of several ranks would fail for want of /dev/shm, None where there is room."""
    if free_bytes is None or free_bytes >= SHM_BYTES:
        return None
    return (
        f"{SHM} has {free_bytes / 2**20:.0f} MiB free, vLLM's ranks want {SHM_BYTES >> 20}: start the container with "
        "--ipc=host or --shm-size=16g, or remove what earlier servers left there"
    )


def shm_files(processes: Sequence[psutil.Process]) -> set[Path]:
    """The files of /dev/shm that these processes have mapped."""
    files = set()
    for process in processes:
        with suppress(psutil.Error, OSError):
            files |= {Path(each.path) for each in process.memory_maps() if each.path.startswith(f"{SHM}/")}
    return files


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
                ports += [port] if is_free(port) else []
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


def is_free(port: int) -> bool:
    """Whether nobody listens on a TCP port of this machine."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def listeners(port: int) -> list[tuple[int, str]]:
    """(process id, name) of those that listen on a TCP port, as far as this user may see them."""
    try:
        sockets = psutil.net_connections("tcp")
    except psutil.Error:
        return []
    pids = {each.pid for each in sockets if each.status == psutil.CONN_LISTEN and each.laddr.port == port}
    names = {}
    for pid in pids - {None}:
        with suppress(psutil.Error):
            names[pid] = psutil.Process(pid).name()
    return sorted(names.items())
