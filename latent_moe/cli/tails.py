"""`latent-moe tails`: every tail at a list of T, on the ranks of this machine."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from latent_moe.cli.output import emit, progress

HELP = "Time every tail on the ranks of this machine, collectives included, or (--shapes-of) the compute of one rank."
LONGEST_S = 10_000_000
POWERS = [1 << power for power in range(15)]


def add_arguments(parser: ArgumentParser) -> None:
    """The flags of this verb."""
    parser.add_argument("--tp", type=int, default=2, help="ranks (default 2)")
    parser.add_argument(
        "--tokens", type=int, nargs="+", help="values of T (default 1 2 4 ... 16384; CPU: to 256)"
    )
    parser.add_argument("--tails", nargs="+", metavar="TAIL", help="which tails (default: all)")
    parser.add_argument(
        "--mode", choices=("eager", "graph", "both"), help="default: both on a GPU, eager on a CPU"
    )
    parser.add_argument("--preset", help="sizes (default kimi-k3 on a GPU, demo on a CPU)")
    parser.add_argument(
        "--dtype", choices=("bfloat16", "float16", "float32"), help="default: bfloat16, float32 on a CPU"
    )
    parser.add_argument(
        "--shapes-of", type=int, metavar="TP", help="one device, no collectives, one rank's shapes"
    )
    parser.add_argument(
        "--samples", type=int, default=30, help="samples per row (default 30), half as many from T = 4096 on"
    )
    parser.add_argument(
        "--rounds", type=int, default=3, help="passes over everything in which they are taken (default 3)"
    )
    parser.add_argument(
        "--collectives",
        choices=("torch", "vllm"),
        default="torch",
        help="whose: torch.distributed (default), or those that a vLLM server of this machine uses (a tail that waits on "
        "handles keeps torch.distributed's, as vLLM has no handles)",
    )
    parser.add_argument(
        "--variants",
        nargs="*",
        default=[],
        metavar="TAIL:OPTION=VALUE",
        help="also time these from T = 1024 on, such as pipelined:chunks=3",
    )
    parser.add_argument("--timeout", type=float, default=900, help="seconds after which the ranks are ended")
    parser.add_argument(
        "--record", type=Path, metavar="FOLDER", help="write a recording: tails.csv, traces, manifest"
    )


def run(args: Namespace) -> int:
    """Time, print, and record if asked."""
    from latent_moe import platform
    from latent_moe.lab.microbench.record import time_tails
    from latent_moe.lab.microbench.sweep import choices, with_limits

    machine = platform.describe()
    sweep = _sweep(args, machine)
    tp = 1 if args.shapes_of else args.tp
    if args.record:
        # A place that cannot be written is said before the timing.
        args.record.mkdir(parents=True, exist_ok=True)
    progress(f"tails: {len(sweep.tails)} tails at {len(sweep.tokens)} T, {machine.device_name}, {tp} rank(s)")
    measured = time_tails(sweep, tp, machine, args.record, args.timeout, progress)
    answer = {**measured, "device": machine.device_name, "tp": args.shapes_of or tp, **sweep.described()}
    if args.shapes_of:
        answer["rows"] = with_limits(
            measured["rows"], sweep.config, args.shapes_of, sweep.dtype, machine.device_name
        )
    else:
        answer["auto"] = choices(measured["rows"], sweep.config, tp, machine, sweep.communicator)
    emit(args, answer, _text(answer))
    return 0 if all(check["max_rel_err"] <= check["bound"] for check in measured["checks"]) else 1


def _sweep(args: Namespace, machine):
    from latent_moe.config import preset
    from latent_moe.errors import InputError
    from latent_moe.lab.microbench.sweep import Sweep
    from latent_moe.parallel import TORCH, VLLM
    from latent_moe.tail_variants.registry import NAMES, known_tail

    gpu = machine.kind != "cpu"
    tokens = args.tokens or (POWERS if gpu else POWERS[:9])
    if min(*tokens, args.samples, args.rounds, args.tp, args.shapes_of or 1) < 1:
        raise InputError("tails: T, samples, rounds and tp must be at least 1")
    if not 0 < args.timeout <= LONGEST_S:
        raise InputError(f"tails: --timeout {args.timeout:g} is not between 0 and {LONGEST_S} seconds")
    if args.collectives == "vllm":
        _check_vllm(args, machine)
    if not gpu and args.mode in ("graph", "both"):
        raise InputError("tails: --mode graph needs a GPU")
    names = args.tails or NAMES
    modes = {"both": ("eager", "graph"), None: ("eager", "graph") if gpu else ("eager",)}.get(
        args.mode, (args.mode,)
    )
    config = preset(args.preset or ("kimi-k3" if gpu else "demo"))
    size = args.shapes_of or args.tp
    if config.hidden_size % size:
        raise InputError(f"tails: tp {size} does not divide H {config.hidden_size}")
    return Sweep(
        config=config,
        tails=tuple(known_tail(name).name for name in names),
        tokens=tuple(sorted(set(tokens))),
        modes=modes,
        dtype=args.dtype or ("bfloat16" if gpu else "float32"),
        samples=args.samples,
        rounds=args.rounds,
        shapes_of=args.shapes_of,
        communicator={"torch": TORCH, "vllm": VLLM}[args.collectives],
        options=tuple(_variant(spec) for spec in args.variants),
    )


def _check_vllm(args: Namespace, machine) -> None:
    from latent_moe.errors import InputError

    if args.shapes_of:
        raise InputError("tails: --shapes-of has no collectives, so --collectives says nothing there")
    if args.tp == 1:
        raise InputError("tails: one rank has no collectives, so --collectives says nothing at --tp 1")
    if machine.vllm_version is None:
        raise InputError("tails: --collectives vllm needs vLLM, which is not installed")


def _variant(spec: str):
    """ "pipelined:chunks=3,accumulate=add" -> (name, tail, options)."""
    from latent_moe.errors import InputError
    from latent_moe.tail_variants.registry import known_tail

    name, _, rest = spec.partition(":")
    pairs = [item.partition("=") for item in rest.split(",")]
    accepted = known_tail(name).options
    for key, _, value in pairs:
        if key not in accepted or not value:
            raise InputError(f"tails: --variants {spec}: {name} takes {', '.join(accepted) or 'no options'}")
        if key == "chunks" and not value.isdigit():
            raise InputError(f"tails: --variants {spec}: chunks is a whole number, not {value}")
    return spec, name, tuple((key, int(value) if value.isdigit() else value) for key, _, value in pairs)


def _text(answer: dict) -> str:
    from latent_moe.lab.microbench.journal import row_text

    lines = [f"{'tail':<18}{'T':>7} {'mode':<6}{'median us':>11}{'p10':>10}{'p90':>10}"]
    lines += [
        row_text(row)
        + (
            f"   limit {row['limit_us']:.1f} (the longer of bytes / bandwidth and FLOP / rate, data sheet, plus one launch)"
            if "limit_us" in row
            else ""
        )
        for row in answer["rows"]
    ]
    lines += [
        f"auto would take {one['tail']} at T = {one['tokens']}, {one['mode']} ({one['why']}): {_beside_best(one)}"
        for one in answer.get("auto", [])
    ]
    worst = max((check["max_rel_err"] for check in answer["checks"]), default=None)
    lines.append(
        f"worst error against float64: {worst:.1e}" if worst is not None else "not checked against float64"
    )
    sizes = f"H = {answer['hidden_size']}, L = {answer['latent_size']}, {answer['dtype']}"
    whose = f", collectives of {answer['communicator']}" if "communicator" in answer else ", no collectives"
    lines.append(
        f"measured on {answer['device']}, tp = {answer['tp']}{whose}; {sizes}; {answer['samples']} samples a row in {answer['rounds']} rounds, half as many from T = 4096 on"
    )
    return "\n".join(lines)


def _beside_best(one: dict) -> str:
    if one["tail"] == one["best"]:
        return "the fastest here"
    return f"{one['over_best_pct']:.1f} % over {one['best']}, the fastest here"
