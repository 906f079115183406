"""addmm_ against matmul + add at row counts where hipBLASLt's beta = 1 epilogue was found to fault (bf16).

M rows, N columns, K' inner size. A fault ends a process: each range is checked in a child, which is started again
behind the row count at which it died. `python -m latent_moe.lab.doctor.gemm_rows DEVICE M,M,... N K` is that child.
"""

import json
import subprocess
import sys
from typing import Any

import torch

# (rows, N, K): the two ranges in which later vLLM reports faults; smaller ones for a CPU.
SUSPECT = ((range(23393, 23406), 896, 3584), (range(2914, 2926), 7168, 3584))
ON_CPU = ((range(93, 98), 64, 256), (range(29, 32), 256, 256))
BOUND = 1e-2


def check_rows(device: str, timeout_s: float = 300) -> list[dict[str, Any]]:
    """One dict a row count: {"M", "N", "K", "ok", "rel_diff" (None where the child died), "fault"}."""
    rows = []
    for counts, n, k in ON_CPU if device == "cpu" else SUSPECT:
        left = list(counts)
        while left:
            found, fault = _child(device, left, n, k, timeout_s)
            rows += found
            left = left[len(found) :]
            if left and fault:
                rows.append({"M": left.pop(0), "N": n, "K": k, "ok": False, "rel_diff": None, "fault": fault})
    return rows


def _child(device: str, counts: list[int], n: int, k: int, timeout_s: float):
    command = [sys.executable, "-m", __name__, device, ",".join(map(str, counts)), str(n), str(k)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
        text, code, why = done.stdout, done.returncode, done.stderr.strip().splitlines()[-1:]
    except subprocess.TimeoutExpired as late:
        text, code, why = (late.stdout or b"").decode(), 1, [f"no answer within {timeout_s:g} s"]
    found = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return found, (why[0] if why else f"exit code {code}") if code or len(found) < len(counts) else None


def _compare(device: str, m: int, n: int, k: int) -> dict[str, Any]:
    x = torch.randn(m, k, device=device, dtype=torch.bfloat16)
    weight = (torch.randn(n, k, device=device) / k**0.5).bfloat16()
    # As in the tail: a slice of columns of a wider tensor.
    shared = torch.randn(m, 2 * n, device=device, dtype=torch.bfloat16)
    apart = shared[:, :n] + x @ weight.t()
    own = shared[:, :n].addmm_(x, weight.t())
    difference = float((own.double() - apart.double()).norm() / apart.double().norm())
    return {"M": m, "N": n, "K": k, "ok": difference <= BOUND, "rel_diff": difference, "fault": None}


def main(argv: list[str]) -> int:
    """Print one JSON line per row count as it is done, so that a fault loses none before it."""
    device, counts, n, k = argv
    for m in map(int, counts.split(",")):
        print(json.dumps(_compare(device, m, int(n), int(k))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
