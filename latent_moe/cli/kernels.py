"""`latent-moe kernels`: any recorded trace as one table of kernels."""

import gc
from argparse import ArgumentParser, Namespace

HELP = "Read traces of any supported format (a file, several, or a directory as one recording) into one kernel table."
GROUPS = ("kind", "name", "shape", "layer", "step", "region", "rank", "stream")
_NAME_WIDTH = 60


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "paths", nargs="+", metavar="PATH", help="trace files, or directories of one recording"
    )
    parser.add_argument("--by", choices=GROUPS, default="kind", help="group rows by (kind)")
    parser.add_argument("--top", type=int, metavar="N", help="only the N rows with the largest totals")
    parser.add_argument("--match", metavar="REGEX", help="only kernels whose name holds this pattern")
    parser.add_argument(
        "--save", metavar="FILE.parquet", help="write the table, to be read here or elsewhere"
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

    _check(args)
    if args.scrub:
        _scrub(args, progress)
    # Millions of cells and no cycles among them: collecting garbage in between costs a third of the reading.
    gc.disable()
    try:
        trace = read(args.paths, salvage=args.salvage)
    finally:
        gc.enable()
    if args.match:
        trace = _matching(trace, args.match)
    if args.export:
        from latent_moe.lab.traces.export import write_chrome_trace

        write_chrome_trace(trace, args.export)
        progress(f"wrote {args.export}")
    if args.save:
        from latent_moe.lab.traces.export import write_parquet

        write_parquet(trace, args.save)
        progress(f"wrote {args.save}")
    answer = summary(trace, args.by, args.top, whole=not args.match)
    emit(args, answer, "" if args.json else text(answer, args.by))
    return 0


def _check(args: Namespace) -> None:
    import re

    from latent_moe.errors import InputError
    from latent_moe.files import check_output

    if args.top is not None and args.top < 1:
        raise InputError(f"--top {args.top}: at least one row")
    for option, target in (("--export", args.export), ("--save", args.save)):
        if target is not None:
            check_output(target, args.paths, option)
    if args.save and not str(args.save).endswith(".parquet"):
        raise InputError(f"--save {args.save}: a name that ends in .parquet")
    try:
        re.compile(args.match or "")
    except re.error as error:
        raise InputError(f"--match {args.match}: no regular expression ({error})") from None


def _matching(trace, pattern: str):
    """Only the kernels whose name holds the pattern; raises InputError where none does."""
    import re

    import numpy as np

    from latent_moe.errors import InputError

    names = trace.kernels["name"]
    fits = np.array([*(bool(re.search(pattern, name)) for name in names.values), False])[names.codes]
    if not fits.any():
        raise InputError(f"--match {pattern}: no kernel has such a name")
    trace.kernels = trace.kernels.take(fits)
    return trace


def _scrub(args: Namespace, progress) -> None:
    from pathlib import Path

    from latent_moe.lab.traces.scrub import scrub

    scrub([Path(path) for path in args.paths], Path(args.scrub))
    progress(f"wrote a scrubbed copy: {args.scrub}")


def summary(trace, by: str, top: int | None = None, whole: bool = True) -> dict:
    """The answer of `kernels --json`. Times in ns, summed over devices; `rows` are the `top` largest, None: all.

    `whole` False: some kernels were left out by name, so that what lies between the others is not idle time.
    """
    from dataclasses import asdict

    from latent_moe.lab.traces import metrics
    from latent_moe.lab.traces.collectives import collectives
    from latent_moe.lab.traces.steps import steps
    from latent_moe.lab.traces.tail_finder import find_tail

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
        "device": trace.device,
        "idle_ns": metrics.idle_ns(kernels) if whole else None,
        "gaps": [asdict(gap) for gap in metrics.largest_gaps(kernels)] if whole else [],
        "rows": _rows(trace, by)[:top],
        "devices": _busy(kernels, metrics.DEVICE),
        "queues": _busy(kernels, metrics.QUEUE),
        "collectives": asdict(collectives(kernels)),
        "steps": asdict(found) if found else None,
        "tail": asdict(find_tail(trace)),
        "formats": trace.formats,
        "sources": trace.files,
        "ignored": trace.ignored,
        "warnings": [asdict(warning) for warning in trace.warnings],
    }


def _rows(trace, by: str) -> list[dict]:
    """One row a group; rows by name carry kind and library, and of a GEMM what its name says."""
    from dataclasses import asdict

    from latent_moe.lab.traces import metrics, steps
    from latent_moe.lab.traces.kernel_names import classify, decode_gemm

    made = {"shape": metrics.shapes, "stream": metrics.streams}
    keys = made[by](trace.kernels) if by in made else by
    keys = {"layer": steps.layers, "step": steps.step_of}[by](trace) if by in ("layer", "step") else keys
    rows = [asdict(row) for row in metrics.group(trace.kernels, keys)]
    if by == "kind":
        return [{**row, "kind": row["key"]} for row in rows]
    if by != "name":
        return rows
    known = classify([row["key"] for row in rows])
    for row, kind, library in zip(rows, known.kind, known.library, strict=True):
        row |= {"kind": kind, "library": library, "gemm": None}
        if gemm := decode_gemm(row["key"]):
            fields = ("tile", "transposes", "dtype_a", "dtype_b", "dtype_out")
            row["gemm"] = {name: getattr(gemm, name) for name in fields}
    return rows


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
    longest = min(_width(), max((len(row["key"]) for row in answer["rows"]), default=0))
    console = Console(file=out, width=max(120, 90 + longest), highlight=False, markup=False, emoji=False)
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
    device = f" on {answer['device']}" if answer["device"] else ""
    return (
        f"{answer['calls']:,} kernels of {answer['processes']} processes in {answer['files']} files"
        f" ({', '.join(answer['formats'])}){device}{partial}\n"
        f"sum of durations {_ms(answer['total_ns'])} ms, devices busy {_ms(answer['busy_ns'])} ms"
        f" (union per device, summed), first to last {_ms(answer['span_ns'])} ms"
    )


def _table(answer: dict, by: str):
    from rich.table import Table

    columns = ("calls", "total ms", "share", "mean us", "median us", "p90 us", "max us")
    # Long names stand last, where they push nothing aside.
    last = by == "name"
    table = Table(*(*columns, by) if last else (by, *columns), box=None)
    for column in table.columns[:-1] if last else table.columns[1:]:
        column.justify = "right"
    for row in answer["rows"]:
        key = row["key"] if len(row["key"]) <= _width() else row["key"][: _width() - 3] + "..."
        share = f"{100 * row['total_ns'] / answer['total_ns']:.1f} %" if answer["total_ns"] else "-"
        times = (_us(row[name]) for name in ("mean_ns", "median_ns", "p90_ns", "max_ns"))
        cells = f"{row['calls']:,}", _ms(row["total_ns"]), share, *times
        table.add_row(*(*cells, key) if last else (key, *cells))
    return table


def _width() -> int:
    """Names are cut on a terminal alone: in a file or a pipe they are whole."""
    import sys

    return _NAME_WIDTH if sys.stdout.isatty() else 100_000


def _gaps(answer: dict) -> list[str]:
    if not answer["idle_ns"]:
        return []
    span = answer["idle_ns"] + (answer["busy_ns"] or 0)
    lines = [
        f"idle between kernels {_ms(answer['idle_ns'])} ms ({100 * answer['idle_ns'] / span:.1f} % of the devices' time)"
    ]
    for gap in answer["gaps"][:3]:
        reason = f", waiting for the {gap['waited_for']}" if gap["waited_for"] else ""
        names = (str(gap[name])[: _NAME_WIDTH // 2] for name in ("before", "after"))
        lines.append(f"  {_us(gap['gap_ns'])} us between {' and '.join(names)}{reason}")
    return lines


def _foot(answer: dict) -> list[str]:
    lines = []
    if answer["unknown_share"] is not None:
        lines.append(f"unknown kernels: {100 * answer['unknown_share']:.2f} % of the time")
    if answer["untimed_calls"]:
        lines.append(f"kernels without a time, in no sum: {answer['untimed_calls']:,}")
    found = answer["collectives"]
    if found["calls"]:
        lines.append(
            f"collectives: {_ms(found['total_ns'])} ms, under GEMMs {_ms(found['overlap_with_gemm_ns'])} ms,"
            f" exposed {_ms(found['exposed_ns'])} ms"
        )
    if found["wait_ns"] is not None:
        lines.append(
            f"  waiting for the last rank {_ms(found['wait_ns'])} ms, transfer {_ms(found['transfer_ns'])} ms"
        )
    for row in found["ranks"] or []:
        if row["late_ns"]:
            lines.append(
                f"  {row['rank']} came last {row['last_of']} times of {row['calls']}, {_ms(row['late_ns'])} ms behind in all"
            )
    if found["bus_gb_per_s"]:
        lines.append(
            f"  bus bandwidth {found['bus_gb_per_s']:.1f} GB/s over {found['message_bytes'] / 1e6:,.1f} MB of messages"
        )
    if answer["steps"]:
        lines.append(
            f"{answer['steps']['count']} steps, {_ms(answer['steps']['total_ns_per_step'])} ms of kernels each"
        )
    for row in answer["rows"]:
        if row["carried_by"]:
            lines.append(
                f"{row['key'][:_NAME_WIDTH]}: {row['carried_by']} of {row['calls']:,} calls hold most of the time"
            )
    return [*lines, *_gaps(answer)] + [f"warning: {warning['message']}" for warning in answer["warnings"]]
