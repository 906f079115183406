"""vLLM's own benchmark client, called from Python: the `vllm` console script of the CPU wheel does not start.

`python -m latent_moe.lab.bench.vllm_client ARGUMENTS` is `vllm bench serve ARGUMENTS`. With `--jobs FILE` it takes
several such argument lists as JSON from LATENT_MOE_CLIENT_JOBS, waits for FILE.go, runs one after another in this one
process (its imports take longer than a short run) and writes FILE.doneN after the N-th.
"""

import asyncio
import json
import os
import sys
import time
from pathlib import Path

JOBS_VARIABLE = "LATENT_MOE_CLIENT_JOBS"
_POLL_S = 0.1


def main(arguments: list[str]) -> int:
    """Run the client once, or once per job."""
    if arguments[:1] != ["--jobs"]:
        run_client(arguments)
        return 0
    plan = Path(arguments[1])
    prepare()
    while not plan.with_suffix(".go").exists():
        time.sleep(_POLL_S)
    for index, job in enumerate(json.loads(os.environ[JOBS_VARIABLE])):
        run_client(job)
        plan.with_suffix(f".done{index}").touch()
    return 0


def prepare() -> None:
    """Import what takes long."""
    import vllm.benchmarks.serve  # noqa: F401


def run_client(arguments: list[str]) -> None:
    """One run of vLLM's client with `arguments`."""
    from vllm.benchmarks.serve import add_cli_args, main_async
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser(prog="vllm bench serve")
    add_cli_args(parser)
    asyncio.run(main_async(parser.parse_args(arguments)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
