"""latent-moe advise: which tail to run on a machine, what it is worth, and how to show it."""

from argparse import ArgumentParser, Namespace

HELP = "Say which tail to run at which T on a machine, what it is worth end to end, and how many pairs of runs show it."


def add_arguments(parser: ArgumentParser) -> None:
    """Options of the verb."""
    parser.add_argument("--config", metavar="FILE", help="the model's config.json (default: Kimi-K3's sizes)")
    parser.add_argument("--hardware", metavar="NAME", help="the machine; here: calibrate this one")
    parser.add_argument("--tp", type=int, default=8, help="tensor-parallel ranks (8)")
    parser.add_argument("--isl", type=int, default=8192, help="prompt tokens (8192)")
    parser.add_argument("--osl", type=int, default=1024, help="output tokens (1024)")
    parser.add_argument("--concurrency", type=int, default=8, help="requests in flight (8)")
    parser.add_argument(
        "--max-num-batched-tokens", type=int, default=16384, metavar="TOKENS", help="tokens a step (16384)"
    )
    known = parser.add_mutually_exclusive_group()
    known.add_argument("--trace", metavar="TRACE", help="a recording of your own server's steps")
    known.add_argument("--table", metavar="RESULTS", help="results of your own server, for its step times")


def run(args: Namespace) -> int:
    """Advise, print, exit 0; InputError says what cannot be used."""
    from latent_moe.cli.output import emit
    from latent_moe.config import KIMI_K3, from_hf
    from latent_moe.lab.cost import advise as advice

    machine = _machine(args.hardware)
    sizes = (args.tp, args.isl, args.osl, args.concurrency, args.max_num_batched_tokens)
    config = from_hf(args.config) if args.config else KIMI_K3
    deployment = advice.Deployment(machine, config, *sizes)
    told = advice.advise(deployment, args.table, _traced(args.trace) if args.trace else None)
    emit(args, told, advice.text(told))
    return 0


def _machine(name: str | None):
    from latent_moe.cli.predict import HERE, this_machine
    from latent_moe.lab.cost.advise import machine_called

    return this_machine() if name == HERE else machine_called(name)


def _traced(path: str) -> dict:
    from latent_moe.errors import AnswerNo
    from latent_moe.lab.traces.read import read
    from latent_moe.lab.traces.tail_finder import find_tail

    finding = find_tail(read(path))
    if finding.form == "none":
        raise AnswerNo(f"{path}: no latent tail in this recording: {'; '.join(finding.evidence)}")
    return {"form": finding.form, "share_of_step": finding.share_of_step}
