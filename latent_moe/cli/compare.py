"""`latent-moe compare`: two recordings side by side."""

from argparse import ArgumentParser, Namespace

HELP = "Compare two recordings, kind by kind: per call, and per step where the call counts allow it."
_SIGN = {"faster": "the candidate is faster", "slower": "the candidate is slower", "same": "no difference"}


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("baseline", metavar="BASELINE", help="a trace file or a recording's directory")
    parser.add_argument("candidate", metavar="CANDIDATE", help="the same, of the other arm")
    parser.add_argument(
        "--by", choices=("kind", "name", "shape"), default="kind", help="rows per call (kind)"
    )
    parser.add_argument("--kind", help="judge by this kind's calls alone, e.g. gemm")
    parser.add_argument(
        *("--same-within", "-s"),
        type=float,
        default=2.0,
        metavar="PERCENT",
        help="differences that count as none (2)",
    )
    parser.add_argument(
        "--salvage", action="store_true", help="read what is whole of a cut file: per call only"
    )
    for arm in ("baseline", "candidate"):
        parser.add_argument(
            f"--{arm}-tail", metavar="TAIL", help=f"of the {arm}, only the regions of this tail"
        )


def run(args: Namespace) -> int:
    from latent_moe.cli.output import emit
    from latent_moe.errors import InputError
    from latent_moe.lab.traces.compare import compare, rows_by
    from latent_moe.lab.traces.kernel_names import KINDS

    if args.kind is not None and args.kind not in KINDS:
        raise InputError(f"kind {args.kind!r} is none of {', '.join(KINDS)}")
    if not 0 <= args.same_within < 100:
        raise InputError(f"--same-within {args.same_within:g} is no percentage from 0 to 100")
    baseline, candidate = (_read(args, arm) for arm in ("baseline", "candidate"))
    result = compare(baseline, candidate, kind=args.kind, same_within=args.same_within / 100)
    rows = rows_by(baseline, candidate, args.by)
    emit(args, {**result.as_dict(), "rows": rows}, "" if args.json else text(result, rows, args.by))
    return 1 if result.verdict == "not_comparable" else 0


def _read(args: Namespace, arm: str):
    from latent_moe.errors import InputError
    from latent_moe.lab.traces.read import read
    from latent_moe.lab.traces.steps import select

    path, tail = getattr(args, arm), getattr(args, f"{arm}_tail")
    trace = read(path, salvage=args.salvage)
    if tail is None:
        return trace
    chosen = select(trace, tail=tail)
    if not len(chosen.kernels):
        raise InputError(f"{path}: no kernels in regions of tail {tail!r}")
    return chosen


def text(result, rows: list[dict], by: str) -> str:
    """The comparison for a person."""
    from io import StringIO

    from rich.console import Console

    out = StringIO()
    console = Console(file=out, width=120, highlight=False, markup=False, emoji=False)
    console.print(_per_call(result) if by == "kind" else _rows(rows, by))
    for line in (*_per_step(result), *_collectives(result), _conclusion(result)):
        console.print(line)
    for warning in result.warnings:
        console.print(f"warning: {warning.message}")
    return out.getvalue().rstrip()


def _per_call(result):
    from rich.table import Table

    table = Table("per call", *("baseline us", "candidate us", "speed-up", "calls", "calls"), box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    for kind, row in result.per_call.items():
        counts = f"{row['baseline_calls']:,}", f"{row['candidate_calls']:,}"
        table.add_row(
            kind, _us(row["baseline_ns"]), _us(row["candidate_ns"]), _times(row["speedup"]), *counts
        )
    return table


def _rows(rows: list[dict], by: str):
    """Medians by name or by shape, what both arms have and what one alone has."""
    from rich.table import Table

    table = Table(
        *("baseline us", "candidate us", "speed-up", "calls", "calls"), f"median per {by}", box=None
    )
    for column in table.columns[:-1]:
        column.justify = "right"
    for row in rows:
        times = _us(row["baseline_median_ns"]), _us(row["candidate_median_ns"]), _times(row["speedup"])
        counts = f"{row['baseline_calls']:,}", f"{row['candidate_calls']:,}"
        table.add_row(*times, *counts, row["key"])
    return table


def _us(value: float | None) -> str:
    return "-" if value is None else f"{value / 1e3:,.2f}"


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _per_step(result) -> list[str]:
    step = result.per_step
    lines = [f"per step: by busy time {_times(step['busy_speedup'])}, by sum {_times(step['sum_speedup'])}"]
    if step.get("baseline_busy_ns") is not None:
        busy = f"busy {_us(step['baseline_busy_ns'])} and {_us(step['candidate_busy_ns'])} us"
        lines.append(
            f"  {busy}, sum {_us(step['baseline_sum_ns'])} and {_us(step['candidate_sum_ns'])} us a device"
        )
    return lines


def _collectives(result) -> list[str]:
    lines = []
    for name, arm in (("baseline", result.baseline), ("candidate", result.candidate)):
        found = arm.collectives
        if not found.calls:
            continue
        wait = "" if found.wait_ns is None else f", {_us(found.wait_ns)} us of it waiting for the last rank"
        hidden = f"{_us(found.overlap_with_gemm_ns)} us under GEMMs"
        lines.append(f"{name}: collectives {_us(found.total_ns)} us, {hidden}{wait}")
    return lines


def _conclusion(result) -> str:
    verdict = _SIGN.get(result.verdict, "not comparable")
    return f"{verdict} ({'; '.join(result.reasons)})"
