"""Two synthetic recordings of Kimi-K3's tail at TP = 8, T = 16: replicated and column_parallel, as rocprofv3 writes them.

Durations are invented to show what a reader must not get wrong; none is a measurement. The whole GEMM takes the
11.69 us that AMD published for its shape on gfx950 (aiter's tuned table), everything else is an assumption.
`python -m tools.studies.synthetic OUT` writes them.
"""

import csv
import sys
from pathlib import Path

from latent_moe.lab.recordings import Manifest, write_manifest
from tools.studies.rocpd_writer import Dispatch, Marker, write_rocpd

DEVICES, STEPS = 8, 4
# 900 s after boot, in ns; each rank starts a little after the one before.
_START_NS, _STEP_NS, _LATE_NS = 900_000_000_000, 120_000, 150
NORM = "void vllm::rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*, c10::BFloat16 const*, float, int, int)"
REDUCE = "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)"
ADD = "void at::native::vectorized_elementwise_kernel<8, at::native::CUDAFunctor_add<c10::BFloat16> >(int)"
_TENSILE = "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT{}_MI16x16x1_SN_LDSB1_AFC1_GSU0_ISA950"
# (name, queue, start and duration in ns from the step's begin)
ARMS = {
    "replicated": (
        (REDUCE, 2, 0, 16_000),
        (NORM, 1, 16_500, 2_100),
        (_TENSILE.format("16x16x256"), 1, 19_000, 11_690),
        (REDUCE, 2, 28_000, 22_000),
        (ADD, 1, 50_500, 2_400),
    ),
    "column_parallel": (
        (REDUCE, 2, 0, 16_000),
        (NORM, 1, 16_500, 2_100),
        (_TENSILE.format("32x16x256"), 1, 19_000, 4_300),
        (REDUCE, 2, 23_800, 22_000),
    ),
}
_COLUMNS = {"replicated": 7168, "column_parallel": 896}
_HEADER = (
    *("Kind", "Agent_Id", "Queue_Id", "Stream_Id", "Thread_Id", "Dispatch_Id", "Kernel_Id", "Kernel_Name"),
    *("Correlation_Id", "Start_Timestamp", "End_Timestamp", "LDS_Block_Size", "Scratch_Size", "VGPR_Count"),
    *("Accum_VGPR_Count", "SGPR_Count", "Workgroup_Size_X", "Workgroup_Size_Y", "Workgroup_Size_Z"),
    *("Grid_Size_X", "Grid_Size_Y", "Grid_Size_Z"),
)


def dispatches(arm: str) -> list[Dispatch]:
    """Every kernel of an arm, in order of its start."""
    rows = []
    for step in range(STEPS):
        region = f"tail={arm} T=16 step={step} M=16 N={_COLUMNS[arm]} K=3584"
        for device in range(DEVICES):
            begin = _START_NS + step * _STEP_NS + device * _LATE_NS
            for name, queue, start, duration in ARMS[arm]:
                first = begin + start
                rows.append(Dispatch(name, first, first + duration, device, queue, device + 1, region))
    return sorted(rows, key=lambda row: row.start_ns)


def markers(rows: list[Dispatch]) -> list[Marker]:
    """One ROCTX range a step and thread, from a little before its first kernel to its last one's end."""
    spans: dict[tuple[str, int], tuple[int, int]] = {}
    for row in rows:
        first, last = spans.get((row.region, row.thread), (row.start_ns, row.end_ns))
        spans[row.region, row.thread] = min(first, row.start_ns), max(last, row.end_ns)
    return [Marker(region, first - 2_000, last, thread) for (region, thread), (first, last) in spans.items()]


def write_csv(path: Path, rows: list[Dispatch]) -> Path:
    """rocprofv3's kernel trace of 22 columns (ROCm 7.x); returns the path."""
    kernels = {name: number for number, name in enumerate(dict.fromkeys(row.name for row in rows), 1)}
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_NONNUMERIC)
        writer.writerow(_HEADER)
        for number, row in enumerate(rows, 1):
            ids = (f"Agent {row.agent + 1}", row.queue, row.queue, row.thread, number, kernels[row.name])
            times = (row.name, number, row.start_ns, row.end_ns)
            writer.writerow(("KERNEL_DISPATCH", *ids, *times, 0, 0, 128, 0, 96, 256, 1, 1, 65536, 1, 1))
    return path


def write(folder: Path) -> Path:
    """folder/<arm>/results.db and folder/<arm>/kernel_trace.csv (the same run) and the manifest; returns the folder."""
    for pid, arm in enumerate(ARMS, 4001):
        (folder / arm).mkdir(parents=True, exist_ok=True)
        rows = dispatches(arm)
        write_csv(folder / arm / "kernel_trace.csv", rows)
        database = folder / arm / "results.db"
        database.unlink(missing_ok=True)
        write_rocpd(database, rows, markers(rows), pid, "invented device")
    write_manifest(folder, _manifest(folder.name))
    return folder


def _manifest(name: str) -> Manifest:
    files = {f"{arm}/results.db": f"rocpd, schema 3, tail {arm}" for arm in ARMS}
    files |= {f"{arm}/kernel_trace.csv": f"the same run as rocprofv3's CSV, tail {arm}" for arm in ARMS}
    return Manifest(
        name=name,
        kind="synthetic",
        title="Kimi-K3's tail, replicated and column_parallel, as rocprofv3 would record it: invented times",
        device="invented, eight GPUs",
        date="2026-11-30",
        command="python -m tools.studies.synthetic OUT",
        files=files,
        parameters={"tp": DEVICES, "tokens": [16], "steps": STEPS, "tails": list(ARMS)},
        notes="No number here is a measurement. The whole GEMM's 11.69 us is AMD's published time for M=16, N=7168, "
        "K=3584 on gfx950; all other durations are assumptions that show overlap, lateness and other kernel names.",
    )


if __name__ == "__main__":
    write(Path(sys.argv[1]))
