"""One server session of a plan: server up, client through its runs, answers and accuracy where they are due, server down."""

import json
import os
import re
import shutil
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from statistics import mean
from time import monotonic
from typing import Any

from latent_moe.errors import LatentMoEError
from latent_moe.files import write_json
from latent_moe.lab.bench import machine, run_files
from latent_moe.lab.bench.client import Client, ClientError
from latent_moe.lab.bench.plan import FIRST_GUESS_S, ClientRun, Plan, SessionEntry
from latent_moe.lab.bench.server import Server, ServerError, SupervisedProcess, check_port

# What ran, else (a compiled model cannot say that) what was built.
_GEMM = (
    re.compile(r"latent_moe: (tail \S+ ran .*)"),
    re.compile(r"latent_moe: (tail \S+ for .*)"),
    re.compile(r"latent_moe: (tail \S+ refused, .*)"),
)
_K3_SHARDED = "up-projecting only this rank's hidden shard"
_CACHE_HITS = re.compile(r"^vllm:(?:gpu_)?prefix_cache_hits(?:_total)?(?:\{[^}]*\})? (\S+)$", re.MULTILINE)
_REQUEST_S = 600.0
_FULL_BYTES = 1 << 16


@dataclass(frozen=True)
class Progress:
    """One message: what happens now, how many of `total` steps are done, and the time left by what was measured."""

    message: str
    done: int
    total: int
    left_s: float


Notify = Callable[[Progress], None]


@dataclass
class Meter:
    """Counts server starts and runs, and estimates the rest from the ones that were measured."""

    notify: Notify
    left: dict[str, int]
    seconds: dict[str, list[float]] = field(default_factory=lambda: {"start": [], "run": []})
    done: int = 0

    def __post_init__(self) -> None:
        self.total = sum(self.left.values())

    def say(self, message: str) -> None:
        """Something happens; nothing is finished by it."""
        self.notify(Progress(message, self.done, self.total, self.left_s))

    def finish(self, kind: str, seconds: float, message: str) -> None:
        """A step of `kind` took `seconds`."""
        self.seconds[kind].append(seconds)
        self.left[kind] -= 1
        self.done += 1
        self.say(message)

    def drop(self, kind: str, count: int) -> None:
        """Steps that will not be taken."""
        self.left[kind] -= count
        self.total -= count

    @property
    def left_s(self) -> float:
        """Seconds left, from the mean of each kind so far."""
        typical = {kind: mean(took) if took else FIRST_GUESS_S[kind] for kind, took in self.seconds.items()}
        return sum(self.left[kind] * typical[kind] for kind in self.left)


def minutes(seconds: float) -> str:
    """m:ss"""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def lines(step: Progress) -> None:
    """A line a step on standard error."""
    left = minutes(step.left_s)
    print(f"[{step.done}/{step.total}, {left} left] {step.message}", file=sys.stderr, flush=True)


class ServerSession:
    """Everything that happens between one server's start and its end, as the plan's entry says it."""

    def __init__(self, plan: Plan, entry: SessionEntry, identity: str, meter: Meter):
        self.plan, self.entry, self.meter = plan, entry, meter
        self.facts = run_files.ServerFacts(identity)
        self.server: Server | None = None
        self.is_up = False
        self._shm_files: set[Path] = set()

    def run(self, when_up: Callable[[], None] = lambda: None) -> None:
        """Start, measure, end. Raises ServerError, ClientError; the server and the client are ended in every case.

        `when_up` is called once the server answers.
        """
        entry, began = self.entry, monotonic()
        label = "the start that is thrown away" if entry.discarded else f"pair {entry.pair}"
        self.meter.say(f"{label}: {entry.arm} starts")
        self.prepare()
        assert self.server is not None
        if entry.go:
            entry.go.touch()
        with self._scrubbed(), self.server as server, Client(entry, self.plan.secrets, os.environ) as client:
            server.wait_healthy(entry.startup_timeout_s)
            self._learn(server)
            self._check_tail(server)
            self.is_up = True
            self.meter.finish("start", monotonic() - began, f"{label}: {entry.arm} is up")
            when_up()
            client.go()
            self._measure(server, client)
            self._answers(server)
            self._accuracy(server)
            self._shm_files = machine.shm_files(server.process.tree()) if server.process else set()
        for path in self._shm_files:
            # Only what its own processes had mapped, and they are gone.
            path.unlink(missing_ok=True)

    def prepare(self) -> None:
        """Start the server's process; on standby it only imports, until it is this session's turn."""
        if self.server is not None:
            return
        entry, process = self.entry, None
        if entry.process is not None:
            check_port(entry.port)
            if (entry.ranks or 1) > 1 and (lack := machine.shm_lack(machine.shm_free_bytes())):
                raise ServerError(f"server {entry.arm}: {lack}", "")
            command, log = entry.process.expanded(os.environ), entry.folder / "server.log"
            process = SupervisedProcess(
                *(command.all_words, command.env, log, self.plan.secrets, entry.cwd, entry.grace_s),
                cleanup=entry.cleanup,
            )
        entry.folder.mkdir(parents=True, exist_ok=True)
        self.server = Server(entry.arm, process, entry.url)

    @contextmanager
    def _scrubbed(self) -> Iterator[None]:
        """Whatever the client and lm_eval wrote is without secrets once they are gone, however that went."""
        try:
            yield
        except LatentMoEError as error:
            if shutil.disk_usage(self.plan.out).free < _FULL_BYTES:
                error.args = (f"{error}; no space left under {self.plan.out}",)
            raise
        finally:
            run_files.scrub(self.entry.folder, self.plan.secrets)
            if self.entry.accuracy:
                run_files.scrub(self.entry.accuracy.folder, self.plan.secrets)

    def stop(self) -> None:
        """End the server if it was started, however far it came."""
        if self.server is not None and self.server.process is not None:
            self.server.process.stop()

    def _measure(self, server: Server, client: Client) -> None:
        """The client's runs; a warm-up belongs to the run behind it."""
        began, hits = monotonic(), cache_hits(server)
        for index, run in enumerate(self.entry.runs):
            when = f"while {self.entry.arm} was measured at concurrency {run.concurrency}"
            started, devices = datetime.now().astimezone(), machine.DeviceLog()
            result = _finish(client, index, server, when, devices.sample)
            if run.run_file is None:
                _refuse_failures(result, self.entry.arm, run.concurrency, server)
                continue
            self._learn(server)
            tokens = sum(result.get(f"total_{way}_tokens") or 0 for way in ("input", "output"))
            state = devices.record(tokens)
            self._save(run, result, started, increase(hits, cache_hits(server)), state)
            marked = f", throttled ({', '.join(state['throttled'])})" if state and state["throttled"] else ""
            text = f"pair {self.entry.pair}: {self.entry.arm} c{run.concurrency}: {summary(result)}{marked}"
            self.meter.finish("run", monotonic() - began, text)
            began, hits = monotonic(), cache_hits(server)

    def _save(
        self, run: ClientRun, result: dict, started: datetime, hits: int | None, devices: dict | None
    ) -> None:
        assert run.run_file is not None
        learned: dict[str, Any] = {"started": started.isoformat(timespec="seconds")}
        learned |= {"prefix_cache_hit_tokens": hits}
        learned |= {"devices": devices} if devices else {}
        record = run_files.run_record({**run.record, **self.facts.record(), **learned}, result)
        run_files.save(run.run_file, record, self.plan.secrets)

    def _learn(self, server: Server) -> None:
        """Version and what the log says about the up-projection.

        Raises ServerError where the version is another than the arm's earlier runs have, or than this session had: then
        another server answers too.
        """
        entry, version, before = self.entry, server.version(), self.facts.vllm_version
        if version and before and version != before:
            raise server.error(
                f"said version {before}, now {version}: another server shares port {entry.port}"
            )
        if version and entry.known_versions - {version}:
            others = ", ".join(sorted(entry.known_versions))
            raise server.error(
                f"is version {version}, its runs in {self.plan.out} are of {others}: measure in another folder"
            )
        server.check_port(entry.port)
        self.facts = replace(
            self.facts, vllm_version=version or before, gemm=self._gemm(server) or self.facts.gemm
        )

    def _gemm(self, server: Server) -> str | None:
        return gemm_line(server.process.log) if server.process else None

    def _check_tail(self, server: Server) -> None:
        """Arms that differ by LATENT_MOE_TAIL alone are the same arm where nothing in the server reads it."""
        entry, logged = self.entry, self._gemm(server) or ""
        refused = " refused, " in logged
        if (
            entry.tail is None
            or (logged.startswith("tail ") and not refused)
            or (refused and entry.may_refuse)
        ):
            return
        if refused:
            raise ServerError(f"server {entry.arm}: {logged}", server.tail())
        raise ServerError(
            f"server {entry.arm} says nothing about LATENT_MOE_TAIL={entry.tail}: its vLLM does not run this package's "
            "runner (latent_moe must be installed beside it, the model be one it knows, and the log level let INFO pass)",
            server.tail(),
        )

    def _answers(self, server: Server) -> None:
        answers = self.entry.answers
        if answers is None:
            return
        self.meter.say(f"{self.entry.arm} answers greedily")
        with _blaming(server, f"while {self.entry.arm} answered greedily"):
            # One at a time: answers of a batch depend on what else is in it, and that differs between arms by chance.
            prompts = [
                {"id": f"p{index}", **complete(server.url, self.entry.model, prompt, answers.max_tokens)}
                for index, prompt in enumerate(answers.prompts)
            ]
        record = {**answers.record, "boot": self.facts.identity, "vllm_version": self.facts.vllm_version}
        saved = {"latent_moe": record, "max_tokens": answers.max_tokens, "prompts": prompts}
        run_files.save(answers.file, saved, self.plan.secrets)

    def _accuracy(self, server: Server) -> None:
        accuracy = self.entry.accuracy
        if accuracy is None:
            return
        self.meter.say(f"{self.entry.arm}: accuracy")
        words, log = accuracy.command.expanded(os.environ).all_words, self.entry.folder / "accuracy.log"
        process = SupervisedProcess(words, {}, log, self.plan.secrets, self.entry.cwd)
        with _blaming(server, "during the accuracy run"):
            try:
                code = process.wait(accuracy.timeout_s)
            finally:
                process.stop()
            if code:
                raise ClientError(
                    f"the accuracy run of {self.entry.arm} failed (exit code {code})", process.tail()
                )
        write_json(accuracy.marker, {})


@contextmanager
def _blaming(server: Server, when: str) -> Iterator[None]:
    """What fails inside is the server's doing if the server died meanwhile."""
    try:
        yield
    except LatentMoEError:
        server.check_dying(when)
        raise
    server.check_alive(when)


def _finish(client: Client, position: int, server: Server, when: str, meanwhile: Callable[[], None]) -> dict:
    """The client's result; a server that died meanwhile is named as the cause of whatever the client says."""

    def look() -> None:
        server.check_alive(when)
        meanwhile()

    with _blaming(server, when):
        result = client.finish(position, look)
    if result.get("failed"):
        server.check_dying(when)
    return result


def _refuse_failures(result: dict, arm: str, concurrency: int, server: Server) -> None:
    """A server that refuses warm-up requests will refuse the measured ones: say so before time is spent on them."""
    if result.get("failed"):
        raise ServerError(
            f"server {arm} failed {result['failed']} of {result.get('num_prompts')} warm-up requests at "
            f"concurrency {concurrency}",
            server.tail(),
        )


def summary(result: dict) -> str:
    """One run in a few words."""
    rate = result.get("total_token_throughput")
    text = f"{rate:.1f} tok/s in all" if isinstance(rate, int | float) else "no throughput"
    return f"{text}, {result['failed']} requests FAILED" if result.get("failed") else text


def gemm_line(log: Path) -> str | None:
    """What the server's log says about the up-projection's GEMM; None when it says nothing."""
    text = log.read_text(encoding="utf-8", errors="replace")
    for pattern in _GEMM:
        if match := pattern.search(text):
            return match[1].strip()
    return _K3_SHARDED if _K3_SHARDED in text else None


def cache_hits(server: Server) -> float | None:
    """Prompt tokens that the server took from its prefix cache since it started, None when it does not say."""
    counts = _CACHE_HITS.findall(server.get("/metrics") or "")
    return sum(map(float, counts)) if counts else None


def increase(before: float | None, after: float | None) -> int | None:
    """after - before, None unless both are known."""
    return None if before is None or after is None else round(after - before)


def complete(url: str, model: str, prompt: str | list[int], max_tokens: int) -> dict[str, Any]:
    """The server's greedy answer to one prompt, with logprobs. Raises LatentMoEError when the server refuses."""
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "logprobs": 2,
        # The prompt's own tokens: the same contexts in every arm, however early the answers part.
        "prompt_logprobs": 0,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    choice = _post(f"{url}/v1/completions", body)["choices"][0]
    logprobs = choice.get("logprobs") or {}
    answer = {"prompt": prompt, "tokens": logprobs.get("tokens"), "logprobs": logprobs.get("token_logprobs")}
    answer |= {"token_ids": choice.get("token_ids"), "top_logprobs": logprobs.get("top_logprobs")}
    answer["prompt_logprobs"] = _of_prompt(choice.get("prompt_logprobs"))
    return {name: value for name, value in answer.items() if value is not None}


def _of_prompt(listed: list[dict[str, dict[str, Any]] | None] | None) -> list[float] | None:
    """The logprob of each prompt token but the first, which follows nothing; None where the server gives none.

    vLLM lists a token's own logprob first, whatever its rank.
    """
    if not listed:
        return None
    return [next(iter(each.values()))["logprob"] for each in listed if each]


def _post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}, method="POST"
    )
    try:
        with urllib.request.urlopen(request, timeout=_REQUEST_S) as answer:
            return json.loads(answer.read())
    except (OSError, ValueError, urllib.error.URLError) as error:
        raise LatentMoEError(f"the server did not answer a greedy request ({error})") from error
