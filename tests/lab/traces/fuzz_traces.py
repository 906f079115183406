"""Mutated recordings through the readers: nothing but a clean table or InputError may come out.

Run: python tests/fuzz_traces.py --count 10000 [--seed 0] PATH ... (files or directories; none: recordings that the
tests write). Large JSON recordings are thinned first, so that ten thousand inputs take minutes. Prints the number of
inputs, what came of them, and every finding with the file kept; exits 1 if there is a finding. Not part of `make test`.
"""

import argparse
import collections
import gzip
import json
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import trace_files as build

from latent_moe.cli.kernels import summary
from latent_moe.errors import InputError
from latent_moe.lab.traces.read import read

SECONDS = 20
WORDS = [
    b"NaN",
    b"-inf",
    b"1e999",
    b"8.1E+14",
    b'"',
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b"\x00",
    b"\xff",
    b"\n",
    b"null",
]
WORDS += [
    b"-1",
    b"0",
    b"18446744073709551615",
    b"9" * 40,
    b"\\ud800",
    b'"cat"',
    b'"ts"',
    b"true",
    b"1.5",
    b"\xef\xbb\xbf",
]


def mutated(data: bytes, rng: random.Random) -> bytes:
    """One to four random changes."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        data = changed(data, rng)
    return data


def changed(data: bytes, rng: random.Random) -> bytes:
    """One random change: cut, delete, insert, overwrite, repeat, move."""
    at, other = rng.randrange(len(data) + 1), rng.randrange(len(data) + 1)
    size, word = rng.choice((1, 1, 4, 40, 400)), rng.choice(WORDS)
    front, back = data[:at], data[at + size :]
    return rng.choice(
        (
            front,
            front + back,
            front + word + data[at:],
            front + word + back,
            front + bytes([rng.randrange(256)]) + data[at + 1 :],
            front + rng.randbytes(size) + back,
            front + data[other : other + size] + data[at:],
            front + data[at : at + size] * 3 + data[at:],
        )
    )


def thinned(path: Path) -> bytes:
    """A file's content, large JSON cut down to a few hundred records."""
    data = path.read_bytes()
    data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    if data[:1] not in b"{[" or len(data) < 200_000:
        return data
    whole = json.loads(data)
    for entry in whole.get("rocprofiler-sdk-tool", []):
        entry["buffer_records"]["kernel_dispatch"] = entry["buffer_records"]["kernel_dispatch"][:100]
        used = {d["dispatch_info"]["kernel_id"] for d in entry["buffer_records"]["kernel_dispatch"]}
        entry["kernel_symbols"] = [s for s in entry["kernel_symbols"] if s["kernel_id"] in used]
        entry["code_objects"], entry["strings"]["att_filenames"] = [], []
    if "traceEvents" in whole:
        events = whole["traceEvents"]
        kernels = [e for e in events if e.get("cat") == "kernel"][:80]
        whole["traceEvents"] = [e for e in events if e.get("cat") != "kernel"][:150] + kernels
        whole["metadata"] = {}
    return json.dumps(whole).encode()


def own(folder: Path) -> list[Path]:
    """Recordings of every format that the tests can write."""
    return [
        build.tool_json(
            folder / "a_results.json", build.tool_entry(build.spans(30), markers={"layer": (1, 9_000_000)})
        ),
        build.rocpd(folder / "a_results.db", build.spans(30), markers={"layer": (1, 9_000_000)}),
        build.csv_trace(folder / "a_kernel_trace.csv", build.spans(30)),
        build.kineto_json(folder / "a.pt.trace.json", build.kineto_events(build.spans(30))),
    ]


def seeds(paths: list[Path], folder: Path) -> list[tuple[str, bytes]]:
    """(name, content) of what is mutated."""
    files = [f for p in paths for f in (sorted(p.iterdir()) if p.is_dir() else [p])]
    files = [f for f in files if f.suffix not in (".md", ".txt")] or own(folder)
    return [(f.name.removesuffix(".gz"), data) for f in files if (data := thinned(f))]


def outcome(path: Path, salvage: bool) -> str:
    """Read one input, and use what comes out. Returns "table" or the class of the clean error."""
    try:
        trace = read(path, salvage=salvage)
    except InputError as error:
        if path.name not in str(error):
            raise AssertionError(f"the error does not name the file: {error}") from None
        return "InputError"
    assert len(trace.kernels)
    assert (trace.kernels["dur_ns"] >= 0).all()
    json.dumps(summary(trace, "name"))
    assert len(trace.table) == len(trace.kernels)
    return "table"


def late(*_):
    raise TimeoutError(f"took more than {SECONDS} s")


def run(count: int, seed: int, paths: list[Path], keep: Path) -> int:
    rng, found, bad = random.Random(seed), collections.Counter(), 0
    signal.signal(signal.SIGALRM, late)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        originals = seeds(paths, folder)
        begin = time.monotonic()
        for number in range(count):
            file, data = originals[number % len(originals)]
            path = folder / f"mutated_{file}"
            data = mutated(data, rng)
            path.write_bytes(gzip.compress(data, 1) if rng.random() < 0.1 else data)
            signal.alarm(SECONDS)
            try:
                found[outcome(path, rng.random() < 0.3)] += 1
            except BaseException as error:
                signal.alarm(0)
                if isinstance(error, KeyboardInterrupt):
                    raise
                bad += 1
                keep.mkdir(exist_ok=True)
                shutil.copy(path, keep / f"{number}_{file}")
                print(f"FINDING {number} {file}: {traceback.format_exc(limit=-3)}", flush=True)
            signal.alarm(0)
    print(
        f"{count} mutated inputs of {len(originals)} files in {time.monotonic() - begin:.0f} s: {dict(found)}, {bad} findings"
    )
    return 1 if bad else 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--keep", type=Path, default=Path("fuzz_findings"), help="where inputs of findings are kept"
    )
    args = parser.parse_args()
    return run(args.count, args.seed, args.paths, args.keep)


if __name__ == "__main__":
    sys.exit(main())
