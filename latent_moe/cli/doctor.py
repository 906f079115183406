"""latent-moe doctor: what this machine can do, and the commands that make the rest work."""

from argparse import ArgumentParser, Namespace
from typing import Any

from latent_moe.cli.output import emit, progress

HELP = "Say what this machine has and lacks for the tour, with the command that mends each lack."


def add_arguments(parser: ArgumentParser) -> None:
    """The verb's arguments."""
    parser.add_argument(
        "--gemm-rows",
        action="store_true",
        help="also check addmm_ against matmul + add at suspect row counts, in a child process since it can fault",
    )


def run(args: Namespace) -> int:
    """Exit 0 when everything needed is there and every checked row count is right, 1 otherwise."""
    from latent_moe.lab.doctor import examine, next_command, verbs_here
    from latent_moe.platform import describe

    here = describe()
    checks = examine(here)
    answer: dict[str, Any] = {"platform": vars(here), "checks": [vars(check) for check in checks]}
    answer |= {"verbs": verbs_here(here), "next": next_command(checks)}
    if args.gemm_rows:
        from latent_moe.lab.doctor.gemm_rows import check_rows

        progress("checking addmm_ at suspect row counts")
        answer["gemm_rows"] = check_rows(here.device_type)
    emit(args, answer, _text(answer))
    rows_right = all(row["ok"] for row in answer.get("gemm_rows", []))
    return 0 if rows_right and all(check.ok for check in checks if check.needed) else 1


def _text(answer: dict) -> str:
    here = answer["platform"]
    lines = [f"{here['kind']}: {here['device_count']} x {here['device_name']}"]
    lines += [
        f"{'ok     ' if one['ok'] else 'MISSING'}  {one['name']:<10} {one['hint']}"
        for one in answer["checks"]
    ]
    for row in answer.get("gemm_rows", []):
        said = row["fault"] or f"relative difference {row['rel_diff']:.1e}"
        lines.append(
            f"{'ok     ' if row['ok'] else 'FAULT  '}  addmm_ M={row['M']} N={row['N']} K={row['K']}: {said}"
        )
    lines += ["", "what each verb does here:"]
    lines += [f"  {verb:<24} {text}" for verb, text in answer["verbs"].items()]
    return "\n".join([*lines, "", f"next: {answer['next']}"])
