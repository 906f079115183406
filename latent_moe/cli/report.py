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
    "device",
    "tail",
)


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("trace", metavar="TRACE", help="a trace file, or the directory of one recording")
    parser.add_argument("baseline", metavar="BASELINE", nargs="?", help="the same, to compare with")
    parser.add_argument(
        "-o", "--out", metavar="FILE.html", default="report.html", help="where to write (report.html)"
    )
    parser.add_argument(
        "--hardware", metavar="NAME", help="the device, for ceilings and savings: mi355x, h200"
    )
    parser.add_argument("--tp", type=int, metavar="N", help="ranks, where the recording does not tell")
    parser.add_argument(
        "--tail", action="store_true", help="ask for the latent tail: exit code 1 without one"
    )
    parser.add_argument(
        "--salvage", action="store_true", help="read what is whole of a cut file, marked partial"
    )


def run(args: Namespace) -> int:
    from latent_moe.cli.output import emit
    from latent_moe.errors import InputError
    from latent_moe.files import check_output
    from latent_moe.lab.trace_report.page import write

    if args.tp is not None and args.tp < 1:
        raise InputError(f"--tp {args.tp} is not a positive number of ranks")
    check_output(args.out, filter(None, (args.trace, args.baseline)), "-o")
    trace, baseline = _read(args)
    figures = write(args.out, trace, baseline, args.hardware, args.tp)
    answer = {"file": figures["file"], "bytes": figures["bytes"], "kernels": len(trace.kernels)}
    answer |= {key: figures[key] for key in _IN_JSON} | {"gaps": figures["gaps"][:10]}
    emit(args, answer, "" if args.json else _text(answer))
    return 1 if args.tail and answer["tail"]["form"] == "none" else 0


def _read(args: Namespace):
    from latent_moe.lab.traces.read import read

    # Millions of cells and no cycles among them: collecting garbage in between costs a third of the reading.
    gc.disable()
    try:
        trace = read(args.trace, salvage=args.salvage)
        return trace, read(args.baseline, salvage=args.salvage) if args.baseline else None
    finally:
        gc.enable()


def _text(answer: dict) -> str:
    tail = answer["tail"]
    reasons = "; ".join(tail["evidence"])
    form = f"no latent tail: {reasons}" if tail["form"] == "none" else f"tail: {tail['form']} ({reasons})"
    size = f"{answer['kernels']:,} kernels, {answer['bytes'] / 1e6:.2f} MB"
    return f"wrote {answer['file']}: {size}\n{form}"
