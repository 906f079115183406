"""latent-moe predict: the candidate rows of a throughput table from its baseline rows and the cost model."""

from argparse import ArgumentParser, Namespace

HELP = "Predict the change from published kernels and the cost model; set it beside what was published."
PUBLISHED = "mi355x_pr51253"
HERE = "here"
NEEDS_A_TABLE = (
    "--hardware here needs --table with this machine's own baseline rows (`latent-moe bench RECIPE --out DIR` makes them): "
    "the table it would otherwise take is of eight MI355X"
)


def add_arguments(parser: ArgumentParser) -> None:
    """Options of the verb; what is left out comes from the manifest beside the table."""
    parser.add_argument(
        "--hardware",
        metavar="NAME",
        help="machine of the table; here: calibrate this one (default: the manifest's)",
    )
    parser.add_argument(
        "--table", metavar="CSV", help=f"published-format table (default: profiles/{PUBLISHED})"
    )
    parser.add_argument(
        "--anchor", type=int, metavar="CONC", help="fix the two savings on this concurrency's pair"
    )
    parser.add_argument(
        "--scoreboard",
        action="store_true",
        help="predicted against published for tables that nothing was fitted to",
    )
    parser.add_argument("--tails", metavar="RECORDING", help="take the savings from this recording of tails")
    parser.add_argument(
        "--baseline-tail", metavar="TAIL", help="the baseline's tail: joint, overlap, row_parallel, ..."
    )
    parser.add_argument("--candidate-tail", metavar="TAIL", help="the candidate's tail")
    parser.add_argument(
        "--shard-from", type=int, metavar="T", help="the candidate's tail runs in steps of at least T tokens"
    )
    parser.add_argument("--tp", type=int, help="tensor-parallel ranks")
    parser.add_argument("--layers", type=int, help="MoE layers")
    parser.add_argument("--budget", type=int, metavar="TOKENS", help="tokens a step (max_num_batched_tokens)")
    parser.add_argument("--preset", help="layer sizes: tiny, demo, kimi-k3")
    parser.add_argument("--baseline", metavar="NAME", help="configuration of the baseline rows")
    parser.add_argument("--candidate", metavar="NAME", help="configuration of the candidate rows")
    parser.add_argument("--constants", metavar="CSV", help="other constants than the package's")


def run(args: Namespace) -> int:
    """Predict, print, exit 0; InputError says what cannot be used."""
    from latent_moe.cli.output import emit
    from latent_moe.errors import InputError
    from latent_moe.lab.cost import answer as report
    from latent_moe.lab.cost import scoreboard

    if args.scoreboard:
        rows = scoreboard.scores()
        emit(args, {"rows": [vars(row) | {"error": row.error} for row in rows]}, scoreboard.text(rows))
        return 0
    options = vars(args) | {"table": _published() if args.table is None else args.table}
    if args.hardware == HERE:
        if args.table is None:
            raise InputError(NEEDS_A_TABLE)
        options |= {"machine": this_machine()}
    answer = report.predict(options)
    misfit = _misfit(options["table"], args.hardware)
    emit(args, answer, "\n".join([*misfit, report.text(answer)]))
    return 0


def _misfit(table: str, hardware_name: str | None) -> list[str]:
    """One line where the table is of another machine than the savings; nothing where its machine is not known."""
    from pathlib import Path

    from latent_moe.lab.cost import hardware
    from latent_moe.lab.recordings import MANIFEST, load_manifest

    folder = Path(table) if Path(table).is_dir() else Path(table).parent
    if hardware_name in (None, HERE) or not (folder / MANIFEST).is_file():
        return []
    device = load_manifest(folder).device
    measured_on = hardware.of_device(device)
    if measured_on is None or measured_on == hardware.get(str(hardware_name)).name:
        return []
    return [
        f"DO NOT FIT: the table's rows are of {device}, the savings of {hardware_name}; read no number below as a prediction "
        f"for either. Rows of your own: --table RESULTS"
    ]


def _published() -> str:
    from latent_moe.lab.recordings import profile_path

    return str(profile_path(PUBLISHED))


def this_machine():
    """This machine, calibrated now; its links are assumed."""
    from latent_moe.cli.output import progress
    from latent_moe.lab.cost import hardware
    from latent_moe.lab.microbench.calibrate import calibrate

    found = calibrate()
    progress(
        f"{found.device}: copies {found.copy_tb_per_s:.3g} TB/s, {found.gemm_tflops:.3g} TFLOP/s "
        f"{found.gemm_dtype}, {found.launch_us:.3g} us a kernel; links are assumed"
    )
    return hardware.from_calibration(found.figures(), hardware.get("h200"))
