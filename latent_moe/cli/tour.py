"""latent-moe tour: the notebooks, headless, into a report."""

from argparse import ArgumentParser, Namespace

from latent_moe.cli.output import emit, progress
from latent_moe.errors import InputError

HELP = "Run the notebooks headless on this machine and write runs/<stamp>/index.html, which needs no network to view."


def add_arguments(parser: ArgumentParser) -> None:
    """The verb's arguments."""
    parser.add_argument("--out", help="a new folder for the report (default runs/<stamp> in the checkout)")
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="NAME", help="only notebooks whose names begin so (01 02)"
    )
    parser.add_argument(
        "--timeout", type=float, default=480, metavar="S", help="limit for one cell (default 480 s)"
    )


def run(args: Namespace) -> int:
    """Exit 0 when every notebook ran, 1 when one failed; the report is written in both cases."""
    from latent_moe.lab.report import run_tour

    if not 0 < args.timeout < 1e6:
        raise InputError(f"tour: --timeout must be a number of seconds above 0, not {args.timeout:g}")
    tour = run_tour(args.out, args.only, progress, timeout_s=args.timeout)
    failed = [one["name"] for one in tour.summary["notebooks"] if not one["ok"]]
    text = f"report: {tour.summary['index']}"
    emit(args, tour.summary, text + (f"\nfailed: {', '.join(failed)}" if failed else ""))
    return 0 if tour.ok else 1
