"""latent-moe verify: every tail on real ranks against a float64 reference."""

from argparse import ArgumentParser, Namespace

from latent_moe.cli.output import emit, progress

HELP = "Check every tail on real ranks against a float64 reference (norm2(x - ref) / norm2(ref))."


def add_arguments(parser: ArgumentParser) -> None:
    """The verb's arguments."""
    parser.add_argument("--tp", type=int, default=2, help="tensor-parallel ranks, real processes (default 2)")
    parser.add_argument("--tokens", type=int, default=16, help="tokens in the batch (default 16)")
    parser.add_argument("--preset", default="tiny", help="tiny, demo or kimi-k3 (default tiny)")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), help="only this one (default both)")
    parser.add_argument("--oracle", help="vllm: also compare with vLLM's own runner class at tp = 2")
    parser.add_argument("--seed", type=int, help="repeat a run (default: a fresh one, printed)")


def run(args: Namespace) -> int:
    """Exit 0 when every check passes, 1 when one fails."""
    from latent_moe.config import preset
    from latent_moe.lab.cost.auto_tail import choose
    from latent_moe.verify import verify

    preset(args.preset).check_tp(args.tp)

    dtypes = (args.dtype,) if args.dtype else ("float32", "bfloat16")
    progress(f"verify: {args.preset}, tp {args.tp}, {args.tokens} tokens, {' and '.join(dtypes)}")
    answer = verify(args.preset, args.tp, args.tokens, dtypes, args.seed, args.oracle, choose=choose)
    progress(f"verify: seed {answer['seed']}, {answer['seconds']} s")
    emit(args, answer, _text(answer))
    return 0 if answer["ok"] else 1


def _text(answer: dict) -> str:
    bounds = ", ".join(f"{name} <= {bound:g}" for name, bound in answer["bounds"].items())
    lines = [
        f"{answer['preset']} with {answer['num_experts']} experts, tp {answer['tp']}, seed {answer['seed']};"
        f" relative error against float64, bounds {bounds}"
    ]
    lines += [_tail_line(name, tail) for name, tail in answer["tails"].items()]
    lines += [f"{name}: {_passed(passed)}" for name, passed in answer["checks"].items()]
    if answer["oracle"]:
        lines.append(_oracle_line(answer["oracle"]))
    return "\n".join([*lines, "ok" if answer["ok"] else "FAILED"])


def _tail_line(name: str, tail: dict) -> str:
    errors = "  ".join(f"{dtype} {error:.1e}" for dtype, error in tail["rel_err"].items())
    reason = "" if tail["eligible"] else f"  ran {tail['ran']}: {tail['reason']}"
    return f"{name:<16} {errors}{reason}{'' if tail['within_bounds'] else '  OUT OF BOUNDS'}"


def _passed(passed: bool | None) -> str:
    return "not applicable" if passed is None else "yes" if passed else "NO"


def _oracle_line(oracle: dict) -> str:
    if oracle["rel_err"] is None:
        return f"oracle {oracle['name']}: {oracle['reason']}"
    return f"oracle {oracle['name']} {oracle['version']}: {oracle['rel_err']:.1e} (bound {oracle['bound']:g})"
