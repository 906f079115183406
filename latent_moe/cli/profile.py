"""`latent-moe profile`: the workload under a profiler, recorded into a folder."""

from argparse import ArgumentParser, Namespace

HELP = "Run tails on real ranks under rocprofv3 or torch.profiler and record them, warm-up left out."


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--tail", nargs="+", required=True, metavar="TAIL", help="tails to record, by name")
    parser.add_argument("--tokens", nargs="+", type=int, metavar="T", help="numbers of tokens (1 16 64 256)")
    parser.add_argument("--tp", type=int, default=2, metavar="N", help="tensor-parallel ranks (2)")
    parser.add_argument("--preset", default="demo", help="tiny, demo or kimi-k3 (demo)")
    parser.add_argument("--dtype", help="bfloat16, float16 or float32 (float32 on a CPU, bfloat16 elsewhere)")
    parser.add_argument("--steps", type=int, default=8, metavar="N", help="recorded steps for each T (8)")
    parser.add_argument("--warm-up", type=int, default=3, metavar="N", help="steps before, not recorded (3)")
    parser.add_argument(
        "--profiler", choices=("rocprofv3", "torch"), help="default: rocprofv3 where it is, else torch"
    )
    parser.add_argument("--out", metavar="DIR", help="a new or empty folder (runs/recordings/<time>)")
    parser.add_argument(
        "--timeout", type=float, default=900, metavar="S", help="limit for the whole recording (900)"
    )


def run(args: Namespace) -> int:
    from latent_moe.cli.output import emit, progress
    from latent_moe.lab.microbench.record import default_profiler, record
    from latent_moe.platform import describe
    from latent_moe.tail_variants.registry import known_tail

    profiler = args.profiler or default_profiler()
    work = _workload(args, describe().kind)
    for tail in work.tails:
        known_tail(tail)
    progress(f"recording {', '.join(work.tails)} on {work.tp} ranks under {profiler}")
    folder = record(work, args.out, profiler, args.timeout)
    answer = {"recording": str(folder), "profiler": profiler, "tails": list(work.tails)}
    look = "\n".join(f"latent-moe kernels {folder}/{tail} --by region" for tail in work.tails)
    if len(work.tails) > 1:
        first, second = work.tails[:2]
        look += f"\nlatent-moe compare {folder}/{first} {folder}/{second} --kind gemm"
    emit(args, answer, f"recorded into {folder}\nlook at it:\n{look}")
    return 0


def _workload(args: Namespace, machine: str):
    from latent_moe.lab.microbench.workload import Workload

    return Workload(
        tails=tuple(dict.fromkeys(args.tail)),
        tokens=tuple(args.tokens or (1, 16, 64, 256)),
        tp=args.tp,
        preset=args.preset,
        dtype=args.dtype or ("float32" if machine == "cpu" else "bfloat16"),
        steps=args.steps,
        warm_up=args.warm_up,
    )
