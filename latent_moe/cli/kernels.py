"""`latent-moe kernels`: any recorded trace as one table of kernels."""

import gc
from argparse import ArgumentParser, Namespace

HELP = "Read traces of any supported format (a file, several, or a directory as one recording) into one kernel table."
_NAME_WIDTH = 60


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "paths", nargs="+", metavar="PATH", help="trace files, or directories of one recording"
    )
    parser.add_argument(
        "--by", choices=("kind", "name", "region", "rank"), default="kind", help="group rows by (kind)"
    )
    parser.add_argument(
        "--salvage", action="store_true", help="read what is whole of a cut file, marked partial"
    )
    parser.add_argument(
        "--export", metavar="FILE", help="write the table as Chrome-trace JSON for Perfetto's UI"
    )
    parser.add_argument(
        "--scrub", metavar="OUT", help="copy the recording without host, user, command and environment"
    )


def run(args: Namespace) -> int:
    from latent_moe.cli.output import emit, progress
    from latent_moe.lab.traces.read import read

    if args.scrub:
        _scrub(args, progress)
    # Millions of cells and no cycles among them: collecting garbage in between costs a third of the reading.
    gc.disable()
    try:
        trace = read(args.paths, salvage=args.salvage)
    finally:
        gc.enable()
    if args.export:
        from latent_moe.lab.traces.export import write_chrome_trace

        write_chrome_trace(trace, args.export)
        progress(f"wrote {args.export}")
    answer = summary(trace, args.by)
    emit(args, answer, "" if args.json else text(answer, args.by))
    return 0


def _scrub(args: Namespace, progress) -> None:
    from pathlib import Path

    from latent_moe.lab.traces.scrub import scrub

    scrub([Path(path) for path in args.paths], Path(args.scrub))
    progress(f"wrote a scrubbed copy: {args.scrub}")


def summary(trace, by: str) -> dict:
    """The answer of `kernels --json`; see design.md, the command line. Times in ns, summed over devices."""
    from dataclasses import asdict

    from latent_moe.lab.traces import metrics
    from latent_moe.lab.traces.collectives import collectives
    from latent_moe.lab.traces.steps import steps

    kernels, found = trace.kernels, steps(trace)
    calls = metrics.calls(kernels)
    return {
        "files": len(trace.files),
        "processes": len(trace.processes),
        "calls": calls,
        "total_ns": metrics.total_ns(kernels),
        "busy_ns": metrics.busy_ns(kernels),
        "span_ns": metrics.span_ns(kernels),
        "untimed_calls": len(kernels) - calls,
        "partial": trace.partial,
        "unknown_share": metrics.share(kernels, "kind", "unknown"),
        "rows": [asdict(row) for row in metrics.group(kernels, by)],
        "devices": _busy(kernels, metrics.DEVICE),
        "queues": _busy(kernels, metrics.QUEUE),
        "collectives": asdict(collectives(kernels)),
        "steps": asdict(found) if found else None,
        "formats": trace.formats,
        "sources": trace.files,
        "ignored": trace.ignored,
        "warnings": [asdict(warning) for warning in trace.warnings],
    }


def _busy(kernels, columns: tuple[str, ...]) -> list[dict]:
    from latent_moe.lab.traces.metrics import busy_by

    return [
        {**key, "calls": calls, "total_ns": total, "busy_ns": busy}
        for key, calls, total, busy in busy_by(kernels, columns)
    ]


def text(answer: dict, by: str) -> str:
    """The answer for a person."""
    from io import StringIO

    from rich.console import Console

    out = StringIO()
    console = Console(file=out, width=120, highlight=False, markup=False, emoji=False)
    console.print(_head(answer))
    console.print(_table(answer, by))
    for line in _foot(answer):
        console.print(line)
    return out.getvalue().rstrip()


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value / 1e6:,.3f}"


def _us(value: float | None) -> str:
    return "-" if value is None else f"{value / 1e3:,.2f}"


def _head(answer: dict) -> str:
    partial = " (PARTIAL: records are missing)" if answer["partial"] else ""
    return (
        f"{answer['calls']:,} kernels of {answer['processes']} processes in {answer['files']} files"
        f" ({', '.join(answer['formats'])}){partial}\n"
        f"sum of durations {_ms(answer['total_ns'])} ms, devices busy {_ms(answer['busy_ns'])} ms"
        f" (union per device, summed), first to last {_ms(answer['span_ns'])} ms"
    )


def _table(answer: dict, by: str):
    from rich.table import Table

    table = Table(by, *("calls", "total ms", "share", "mean us", "median us"), box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    for row in answer["rows"]:
        key = row["key"] if len(row["key"]) <= _NAME_WIDTH else row["key"][: _NAME_WIDTH - 3] + "..."
        share = f"{100 * row['total_ns'] / answer['total_ns']:.1f} %" if answer["total_ns"] else "-"
        table.add_row(
            key, f"{row['calls']:,}", _ms(row["total_ns"]), share, _us(row["mean_ns"]), _us(row["median_ns"])
        )
    return table


def _foot(answer: dict) -> list[str]:
    lines = []
    if answer["unknown_share"] is not None:
        lines.append(f"unknown kernels: {100 * answer['unknown_share']:.2f} % of the time")
    if answer["untimed_calls"]:
        lines.append(f"kernels without a time, in no sum: {answer['untimed_calls']:,}")
    found = answer["collectives"]
    if found["calls"]:
        lines.append(
            f"collectives: {_ms(found['total_ns'])} ms, under GEMMs {_ms(found['overlap_with_gemm_ns'])} ms"
        )
    if found["wait_ns"] is not None:
        lines.append(
            f"  waiting for the last rank {_ms(found['wait_ns'])} ms, transfer {_ms(found['transfer_ns'])} ms"
        )
    if answer["steps"]:
        lines.append(
            f"{answer['steps']['count']} steps, {_ms(answer['steps']['total_ns_per_step'])} ms of kernels each"
        )
    return lines + [f"warning: {warning['message']}" for warning in answer["warnings"]]
