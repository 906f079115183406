"""vLLM's own benchmark client: its runs against one server, one after another, each result read whole.

`python -m latent_moe.lab.bench.client ARGUMENTS` is `vllm bench serve ARGUMENTS`, called from Python: the `vllm` console
script of the CPU wheel does not start. With `--jobs FILE` it takes several such argument lists as JSON from
LATENT_MOE_CLIENT_JOBS, waits for FILE.go, runs them in this one process (its imports take longer than a short run) and
writes FILE.doneN after the N-th.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from latent_moe.errors import LatentMoEError
from latent_moe.lab.bench.server import SupervisedProcess

if TYPE_CHECKING:
    from latent_moe.lab.bench.plan import ClientRun, SessionEntry

JOBS_VARIABLE = "LATENT_MOE_CLIENT_JOBS"
_POLL_S = 0.2


class ClientError(LatentMoEError):
    """The client failed; `log_tail` holds the last lines it wrote."""

    def __init__(self, message: str, log_tail: str):
        super().__init__(message)
        self.log_tail = log_tail


class Client:
    """The client's runs of one session. Where the plan lets them share a process, that is started before the server is
    ready, since the client's imports take longer than a short run; otherwise each is a command of its own."""

    def __init__(self, entry: SessionEntry, secrets: Sequence[str], environment: Mapping[str, str]):
        self.entry = entry
        self.secrets = secrets
        self.commands = [run.command.expanded(environment) for run in entry.runs]
        self.jobs = entry.folder / "client_jobs"
        self._shared = self._start_shared() if entry.shared_client and entry.runs else None

    def _start_shared(self) -> SupervisedProcess:
        # python -m MODULE, then the client's own arguments, which may carry a token: they lie in no file.
        jobs = json.dumps([command.all_words[3:] for command in self.commands])
        words = [*self.commands[0].words[:3], "--jobs", str(self.jobs.absolute())]
        log = self.entry.folder / "client.log"
        return SupervisedProcess(words, {JOBS_VARIABLE: jobs}, log, self.secrets, self.entry.cwd)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shared:
            self._shared.stop()

    def go(self) -> None:
        """The server is ready: the shared process may begin."""
        self.jobs.with_suffix(".go").touch()

    def finish(self, index: int, check: Callable[[], None]) -> dict[str, Any]:
        """Wait for run `index` (in order) and return its result; `check` is called meanwhile and may raise.

        Raises ClientError when the client fails, writes no result or takes longer than the recipe allows.
        """
        run = self.entry.runs[index]
        process = self._shared or self._start_alone(run, index)
        try:
            self._wait(run, index, process, check)
        finally:
            if process is not self._shared:
                process.stop()
        try:
            return json.loads(run.result.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ClientError(
                f"{run.name}: the client wrote no readable result ({error})", process.tail()
            ) from error

    def _start_alone(self, run: ClientRun, index: int) -> SupervisedProcess:
        log = self.entry.folder / f"client_{index}_{run.name}.log"
        return SupervisedProcess(self.commands[index].all_words, {}, log, self.secrets, self.entry.cwd)

    def _wait(
        self, run: ClientRun, index: int, process: SupervisedProcess, check: Callable[[], None]
    ) -> None:
        done = self.jobs.with_suffix(f".done{index}")
        deadline = monotonic() + self.entry.run_timeout_s
        while not (process is self._shared and done.exists()):
            check()
            code = process.exit_code
            if code is not None and not (process is self._shared and done.exists()):
                if code == 0 and process is not self._shared:
                    return
                raise ClientError(f"the client failed in {run.name} (exit code {code})", process.tail())
            if monotonic() > deadline:
                limit = f"{self.entry.run_timeout_s:g} s"
                raise ClientError(f"{run.name}: no result within {limit}", process.tail())
            sleep(_POLL_S)


def main(arguments: list[str]) -> int:
    """Run vLLM's client once, or once per job."""
    if arguments[:1] != ["--jobs"]:
        run_client(arguments)
        return 0
    import vllm.benchmarks.serve  # noqa: F401 - takes long, while the server starts

    jobs = Path(arguments[1])
    while not jobs.with_suffix(".go").exists():
        sleep(_POLL_S)
    for index, job in enumerate(json.loads(os.environ[JOBS_VARIABLE])):
        run_client(job)
        jobs.with_suffix(f".done{index}").touch()
    return 0


def run_client(arguments: list[str]) -> None:
    """One run of vLLM's client with `arguments`."""
    from vllm.benchmarks.serve import add_cli_args, main_async
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser(prog="vllm bench serve")
    add_cli_args(parser)
    asyncio.run(main_async(parser.parse_args(arguments)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
