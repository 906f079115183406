"""This machine in three figures: copy bandwidth, GEMM rate, launch cost. About two seconds on a CPU or a GPU.

What the cost model needs to speak of a machine that no data sheet in it describes (cost.hardware.from_calibration).
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch

REPEATS = 7


@dataclass(frozen=True)
class Calibration:
    """Measured here: medians over `REPEATS` runs.

    `copy_tb_per_s` counts bytes read and written; `gemm_tflops` is a square bf16 GEMM (float32 where the machine has
    no fast bf16); `launch_us` is one tiny kernel in a row of them (on a GPU in a captured graph).
    """

    device: str
    copy_tb_per_s: float
    gemm_tflops: float
    launch_us: float
    gemm_dtype: str
    gemm_size: int
    copy_mb: float

    def figures(self) -> dict[str, float]:
        """What cost.hardware.from_calibration takes."""
        return {name: getattr(self, name) for name in ("copy_tb_per_s", "gemm_tflops", "launch_us")}


def calibrate(
    device: str | None = None,
    gemm_size: int | None = None,
    copy_mb: float | None = None,
    dtype: str | None = None,
) -> Calibration:
    """Measure `device` ("cuda", "cpu"; default: a GPU if there is one). Sizes default to what fills the device,
    `dtype` of the GEMM to bfloat16, on a CPU to the faster one of bfloat16 and float32.
    """
    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    on_gpu = where.type == "cuda"
    size = gemm_size or (8192 if on_gpu else 1024)
    mega = copy_mb or (1024 if on_gpu else 128)
    rate, timed_dtype = _gemm_tflops(where, size, dtype)
    return Calibration(
        device=torch.cuda.get_device_name(where) if on_gpu else "CPU",
        copy_tb_per_s=_copy_tb_per_s(where, mega),
        gemm_tflops=rate,
        launch_us=_launch_us(where),
        gemm_dtype=timed_dtype,
        gemm_size=size,
        copy_mb=mega,
    )


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    """Median time of `work`, the device idle before and after."""

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    work()
    wait()
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        wait()
        times.append(time.perf_counter() - start)
    return median(times)


def _copy_tb_per_s(device: torch.device, mega: float) -> float:
    source = torch.ones(int(mega * 1e6), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.numel() / _seconds(lambda: target.copy_(source), device) / 1e12


def _gemm_tflops(device: torch.device, size: int, wanted: str | None) -> tuple[float, str]:
    dtype = getattr(torch, wanted or "bfloat16")
    if device.type == "cpu" and wanted is None:
        # On a CPU without bf16 units float32 is far faster: a small GEMM tells, a large one would take seconds.
        dtype = min((torch.float32, torch.bfloat16), key=lambda dtype: _gemm_seconds(device, 256, dtype))
    return 2 * size**3 / _gemm_seconds(device, size, dtype) / 1e12, str(dtype).removeprefix("torch.")


def _gemm_seconds(device: torch.device, size: int, dtype: torch.dtype) -> float:
    a = torch.randn(size, size, device=device).to(dtype)
    return _seconds(lambda: a @ a, device)


def _launch_us(device: torch.device, kernels: int = 200) -> float:
    """One of many dependent tiny kernels: on a GPU as nodes of a captured graph, which is how a server's decode steps run."""
    tiny = torch.zeros(1, device=device)

    def row() -> None:
        for _ in range(kernels):
            tiny.add_(1)

    if device.type == "cuda":
        row()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            row()
        return _seconds(graph.replay, device) / kernels * 1e6
    return _seconds(row, device) / kernels * 1e6
