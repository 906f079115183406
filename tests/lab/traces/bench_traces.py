"""Whole-process time and peak memory of `latent-moe kernels PATH --json`: medians over runs, side by side.

Run: python tests/bench_traces.py [--runs 5] [--large] [PATH ...]. Without paths it writes its own recordings: one run
of 43,915 dispatches as rocprofv3 JSON, rocpd and CSV; with --large also a 1 GB PyTorch-profiler JSON and a rocpd
database of 5 million dispatches. Not a test: figures depend on the machine, so they are printed and not asserted.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import trace_files as build

_EVENT = (
    '{{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 7, "tid": 7, "ts": {a}.125, "dur": 9.5, "args": '
    '{{"External id": {i}, "Input Dims": [[{m}, 3584], [3584, 896]], "Ev Idx": {i}}}}},\n'
    '{{"ph": "X", "cat": "python_function", "name": "model.py({m}): forward", "pid": 7, "tid": 7, "ts": {a}.25, '
    '"dur": 9.25, "args": {{"Python parent id": {i}, "Python id": {i}, "Ev Idx": {i}}}}},\n'
    '{{"ph": "X", "cat": "cuda_runtime", "name": "hipLaunchKernel", "pid": 7, "tid": 7, "ts": {a}.5, "dur": 3.0, '
    '"args": {{"External id": {i}, "cid": 48, "correlation": {i}}}}},\n'
    '{{"ph": "X", "cat": "kernel", "name": "{name}", "pid": 0, "tid": 3, "ts": {b}.75, "dur": 8.125, "args": '
    '{{"External id": {i}, "device": 0, "stream": 3, "correlation": {i}, "grid": [64, 1, 1], "block": [256, 1, 1]}}}}'
)


def kineto_of(path: Path, size_bytes: int) -> Path:
    """A PyTorch-profiler JSON of about this size: op, Python frame, launch and kernel in turn."""
    written, last = 0, 0
    with path.open("w") as file:
        file.write('{"schemaVersion": 1, "distributedInfo": {"rank": 0, "world_size": 1}, "traceEvents": [\n')
        while written < size_bytes:
            lines = []
            for i in range(last + 1, last + 2001):
                at = 1_000_000 + 10 * i
                name = build.NAMES[i % len(build.NAMES)]
                lines.append(_EVENT.format(a=at, b=at + 50, i=i, m=i % 512, name=name))
            last += 2000
            written += file.write((",\n" if written else "") + ",\n".join(lines))
        file.write('], "traceName": "x.json"}')
    return path


def recordings(folder: Path, large: bool) -> list[Path]:
    """What is measured when no path is given."""
    n = 43_915
    made = [
        build.tool_json(folder / "run_results.json", build.tool_entry(build.spans(n))),
        build.rocpd(folder / "run_results.db", build.spans(n)),
        build.csv_trace(folder / "run_kernel_trace.csv", build.spans(n)),
    ]
    if large:
        made += [kineto_of(folder / "large.pt.trace.json", 10**9)]
        made += [build.rocpd(folder / "large_results.db", build.spans(5_000_000))]
    return made


def measure(path: Path) -> tuple[float, float, int]:
    """(seconds, peak MiB, calls) of one whole process."""
    code = (
        "import sys; from latent_moe.cli import main; code = main(); "
        "print(*[line.split()[1] for line in open('/proc/self/status') if 'VmHWM' in line], file=sys.stderr); sys.exit(code)"
    )
    command = [sys.executable, "-c", code, "kernels", str(path), "--json"]
    begin = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds = time.perf_counter() - begin
    peak_mib = int(done.stderr.split()[-1]) / 1024
    return seconds, peak_mib, json.loads(done.stdout.splitlines()[-1])["calls"]


def report(paths: list[Path], runs: int) -> None:
    """Runs in turn over all files, so that a slow minute hits them alike; then one line per file."""
    found: dict[Path, list] = {path: [] for path in paths}
    for _ in range(runs):
        for path in paths:
            found[path].append(measure(path))
    print(f"{'file':<40} {'MB':>8} {'calls':>10} {'median s':>9} {'worst s':>8} {'peak MiB':>9}")
    for path, results in found.items():
        seconds = [r[0] for r in results]
        print(
            f"{path.name:<40} {path.stat().st_size / 1e6:>8.1f} {results[0][2]:>10,} {statistics.median(seconds):>9.2f}"
            f" {max(seconds):>8.2f} {statistics.median(r[1] for r in results):>9.0f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument(
        "--large", action="store_true", help="also 1 GB of JSON and 5 million dispatches (2 GB of disk)"
    )
    parser.add_argument("--keep", type=Path, help="write the recordings here and keep them")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        where = args.keep or Path(folder)
        where.mkdir(exist_ok=True)
        report(args.paths or recordings(where, args.large), args.runs)


if __name__ == "__main__":
    main()
