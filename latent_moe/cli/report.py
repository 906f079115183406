"""`latent-moe report`: one self-contained page to look into a recording."""

import gc
from argparse import ArgumentParser, Namespace

HELP = (
    "Write one HTML page, which needs no network, to look into a recording and to compare it with a baseline."
)
_IN_JSON = (
    "calls",
    "total_ns",
    "busy_ns",
    "span_ns",
    "idle_ns",
    "untimed_calls",
    "partial",
    "rows",
    "tail",
    "device",
)


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("trace", metavar="TRACE", help="a trace file, or the directory of one recording")
    parser.add_argument("baseline", metavar="BASELINE", nargs="?", help="the same, to compare with")
    parser.add_argument(
        "-o", "--out", metavar="FILE.html", default="report.html", help="where to write (report.html)"
    )
    parser.add_argument(
        "--salvage", action="store_true", help="read what is whole of a cut file, marked partial"
    )


def run(args: Namespace) -> int:
    from latent_moe.cli.output import emit
    from latent_moe.lab.trace_report.page import write
    from latent_moe.lab.traces.read import read

    # Millions of cells and no cycles among them: collecting garbage in between costs a third of the reading.
    gc.disable()
    try:
        trace = read(args.trace, salvage=args.salvage)
        baseline = read(args.baseline, salvage=args.salvage) if args.baseline else None
    finally:
        gc.enable()
    found = write(args.out, trace, baseline)
    answer = {"file": found["file"], "bytes": found["bytes"], "kernels": len(trace.kernels)}
    answer |= {key: found[key] for key in _IN_JSON if key in found} | {"gaps": found["gaps"][:10]}
    emit(
        args, answer, f"wrote {answer['file']}: {answer['kernels']:,} kernels, {answer['bytes'] / 1e6:.2f} MB"
    )
    return 0
