"""Drives vLLM's benchmark client: one job after another against one server, each result read whole."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from latent_moe.errors import LatentMoEError
from latent_moe.lab.bench.commands import Command
from latent_moe.lab.bench.server import Guarded
from latent_moe.lab.bench.vllm_client import JOBS_VARIABLE

_POLL_S = 0.2


class ClientError(LatentMoEError):
    """The client failed; `log_tail` holds the last lines it wrote."""

    def __init__(self, message: str, log_tail: str):
        super().__init__(message)
        self.log_tail = log_tail


@dataclass(frozen=True)
class Job:
    """One run of the client: its command, and the file it writes its result into."""

    name: str
    command: Command
    result: Path


class Client:
    """The client's runs against one server. With `together` they share a process that is started before the server is
    ready, since the client's imports take longer than a short run; otherwise each is a command of its own."""

    def __init__(
        self, jobs: Sequence[Job], folder: Path, cwd: Path, timeout_s: float, together: bool, secrets=()
    ):
        self.jobs = list(jobs)
        self.folder = folder
        self.cwd = cwd
        self.timeout_s = timeout_s
        self.secrets = secrets
        self.plan = folder / "client_jobs"
        self._shared = self._start_shared() if together and jobs else None

    def _start_shared(self) -> Guarded:
        first = self.jobs[0].command
        # python -m MODULE, then the client's own arguments.
        head = first.words[:3]
        # Their arguments may carry a token: they go through the environment and lie in no file.
        jobs = json.dumps([job.command.all_words[3:] for job in self.jobs])
        env = {**first.env, JOBS_VARIABLE: jobs}
        command = [*head, "--jobs", str(self.plan.resolve())]
        return Guarded(command, env, self.folder / "client.log", self.secrets, self.cwd)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_) -> None:
        if self._shared:
            self._shared.stop()

    def go(self) -> None:
        """The server is ready: the shared process may begin."""
        self.plan.with_suffix(".go").touch()

    def finish(self, index: int, check: Callable[[], None]) -> dict[str, Any]:
        """Wait for job `index` (in order) and return its result; `check` is called meanwhile and may raise.

        Raises ClientError when the client fails, writes no result or takes longer than the recipe allows.
        """
        job = self.jobs[index]
        process = self._shared or self._start_alone(job, index)
        try:
            self._wait(job, index, process, check)
        finally:
            if process is not self._shared:
                process.stop()
        return _read(job, process)

    def _start_alone(self, job: Job, index: int) -> Guarded:
        log = self.folder / f"client_{index}_{job.name}.log"
        return Guarded(job.command.all_words, job.command.env, log, self.secrets, self.cwd)

    def _wait(self, job: Job, index: int, process: Guarded, check: Callable[[], None]) -> None:
        done = self.plan.with_suffix(f".done{index}")
        deadline = monotonic() + self.timeout_s
        while not (process is self._shared and done.exists()):
            check()
            code = process.exit_code
            if code is not None and not (process is self._shared and done.exists()):
                if code == 0 and process is not self._shared:
                    return
                raise ClientError(f"the client failed in {job.name} (exit code {code})", process.tail())
            if monotonic() > deadline:
                raise ClientError(f"{job.name}: no result within {self.timeout_s:g} s", process.tail())
            sleep(_POLL_S)


def _read(job: Job, process: Guarded) -> dict[str, Any]:
    try:
        return json.loads(job.result.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ClientError(
            f"{job.name}: the client wrote no readable result ({error})", process.tail()
        ) from error
