"""latent-moe bench: serve both arms with real vLLM, interleaved, and measure them."""

import signal
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

HELP = "Start real vLLM servers for both arms of a recipe, in turn, drive vLLM's own client, save run by run."


def add_arguments(parser: ArgumentParser) -> None:
    """The verb's arguments."""
    from latent_moe.lab.bench.recipe import recipe_names

    shipped = ", ".join(recipe_names())
    parser.add_argument("recipe", metavar="RECIPE", help=f"a shipped recipe ({shipped}) or a .toml file")
    parser.add_argument("--out", metavar="DIR", help="where results go (default: runs/bench/<time>_<recipe>)")
    parser.add_argument("--resume", action="store_true", help="complete an interrupted --out")
    parser.add_argument(
        "--pairs", type=int, metavar="N", help="pairs of server sessions instead of the recipe's number"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print the plan, every command in its order, and start nothing"
    )
    parser.add_argument(
        "--profile",
        nargs="?",
        const="",
        metavar="ARM",
        help="one short run of ARM (default: the candidate), traced",
    )


def run(args: Namespace) -> int:
    """Dispatch on --dry-run and --profile; 0 when everything was measured."""
    from latent_moe.errors import InputError
    from latent_moe.lab.bench.recipe import load_recipe

    if args.profile is not None and (args.resume or args.pairs is not None or args.dry_run):
        raise InputError("--profile is one short run: it takes no --resume, --pairs or --dry-run")
    recipe = load_recipe(args.recipe).with_pairs(args.pairs)
    if args.dry_run:
        return _show(args, recipe)
    with _terminate_as_interrupt(), _last_lines_of_the_log():
        return _profile(args, recipe) if args.profile is not None else _measure(args, recipe)


def _show(args: Namespace, recipe) -> int:
    from latent_moe.cli.output import emit
    from latent_moe.lab.bench.bench import default_folder
    from latent_moe.lab.bench.resolve import resolve

    plan = resolve(recipe, args.out or default_folder(recipe.name))
    plan = (plan.remaining() if args.resume else plan).with_discarded()
    emit(args, plan.as_json(), plan.text())
    return 0


def _measure(args: Namespace, recipe) -> int:
    from latent_moe.cli.output import emit
    from latent_moe.lab.bench import bench

    with _shown() as notify:
        out = bench.run(recipe, args.out, resume=args.resume, pairs=args.pairs, notify=notify)
    files = sorted(str(path.relative_to(out)) for path in Path(out).glob("runs/*.json"))
    emit(args, {"recipe": recipe.name, "runs": files, "out": str(out)}, f"{out}: {len(files)} runs")
    return 0


def _profile(args: Namespace, recipe) -> int:
    from latent_moe.cli.output import emit
    from latent_moe.lab.bench import trace_run

    arm = args.profile or recipe.role_of("candidate")
    with _shown() as notify:
        folder = trace_run.trace(recipe, arm, args.out, notify)
    files = [str(path) for path in trace_run.trace_files(folder)]
    answer = {"recipe": recipe.name, "arm": arm, "profiler": trace_run.profiler(), "runs": []}
    text = f"{folder}: {len(files)} trace files; `latent-moe kernels {folder}` reads them, `compare` those of two arms"
    emit(args, {**answer, "out": str(folder.parent.parent), "traces": files}, text)
    return 0


@contextmanager
def _shown() -> Iterator[Callable]:
    """A notify function for this standard error: a bar on a terminal, lines in a file or a notebook."""
    from latent_moe.lab.bench.session import Progress, lines, minutes

    if not sys.stderr.isatty():
        yield lines
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    counted, what = "{task.completed:.0f}/{task.total:.0f}", "{task.description}"
    columns = (TextColumn(counted), BarColumn(30), TextColumn(what))
    with Bar(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("starting", total=None)

        def notify(step: Progress) -> None:
            text = f"{minutes(step.left_s)} left · {step.message}"
            bar.update(task, completed=step.done, total=step.total, description=text)

        yield notify


@contextmanager
def _last_lines_of_the_log():
    """What a server or client that failed said last, before the one line that says what failed."""
    from latent_moe.errors import LatentMoEError

    try:
        yield
    except LatentMoEError as error:
        if tail := getattr(error, "log_tail", ""):
            print(f"last lines of the log:\n{tail}", file=sys.stderr)
        raise


@contextmanager
def _terminate_as_interrupt():
    """SIGTERM and a closed terminal end a benchmark as Ctrl-C does: servers down, files whole. What was ignored when
    it began (`nohup`) stays so.
    """

    def interrupt(*_):
        raise KeyboardInterrupt

    heard = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is not signal.SIG_IGN]
    before = {number: signal.signal(number, interrupt) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
