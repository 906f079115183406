"""One boot of one arm: server up, client through its concurrencies, answers and accuracy where they are due, server down."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from time import monotonic

from latent_moe.errors import LatentMoEError
from latent_moe.lab.bench import answers, commands, run_files, schedule
from latent_moe.lab.bench.client import Client, ClientError, Job
from latent_moe.lab.bench.model_dir import model_config
from latent_moe.lab.bench.options import DEFAULT_PORT, tail_of
from latent_moe.lab.bench.progress import Meter
from latent_moe.lab.bench.recipe import Recipe
from latent_moe.lab.bench.server import Guarded, Server, ServerError, check_port, free_port
from latent_moe.lab.bench.supervisor import GRACE_S

# What ran, else (a compiled model cannot say that) what was built.
_GEMM = (
    re.compile(r"latent_moe: (tail \S+ ran .*)"),
    re.compile(r"latent_moe: (tail \S+ for .*)"),
    re.compile(r"latent_moe: (tail \S+ refused, .*)"),
)
_K3_SHARDED = "up-projecting only this rank's hidden shard"
_CACHE_HITS = re.compile(r"^vllm:(?:gpu_)?prefix_cache_hits(?:_total)?(?:\{[^}]*\})? (\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class Tracing:
    """What a profiler adds to a boot: words before the server's command, variables of it, arguments of the client's
    measured run (not of its warm-up), and how long the server may take to end (it may be writing its traces)."""

    wrapper: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    client: tuple[str, ...] = ()
    grace_s: float = GRACE_S


class BootRun:
    """Everything that happens between one server's start and its end."""

    def __init__(
        self,
        recipe: Recipe,
        out: Path,
        boot: schedule.Boot,
        python: str | None,
        device: str,
        identity: str,
        meter: Meter,
        tracing: Tracing | None = None,
        cwd: Path | None = None,
    ):
        self.recipe, self.out, self.boot, self.python, self.meter = recipe, out, boot, python, meter
        self.arm = recipe.arms[boot.arm]
        self.model = recipe.model.preset or recipe.model.name or ""
        self.port = recipe.server.port
        self.folder = out / "logs" / f"{boot.order:02d}_{boot.arm}_{identity}"
        self.secrets = run_files.secrets_of(recipe)
        caching = run_files.prefix_caching([*recipe.server.args, *self.arm.args])
        self.facts = run_files.BootFacts(boot, identity, None, None, device, caching)
        self.server: Server | None = None
        self.cwd = cwd or out
        self.tracing = tracing or Tracing()
        self._go = self.folder / "server.go"

    def run(self, when_up: Callable[[], None] = lambda: None) -> None:
        """Boot, measure, end. Raises ServerError, ClientError; the server and the client are ended in every case.

        `when_up` is called once the server answers.
        """
        began = monotonic()
        self.meter.say(f"pair {self.boot.pair}: {self.boot.arm} starts")
        self.prepare()
        assert self.server is not None
        self._go.touch()
        with self._scrubbed(), self.server as server, self._client() as client:
            server.wait_healthy(self.recipe.server.startup_timeout_s)
            self._learn(server)
            self._check_tail(server)
            self.meter.finish("boot", monotonic() - began, f"pair {self.boot.pair}: {self.boot.arm} is up")
            when_up()
            client.go()
            for index, concurrency in enumerate(self._concurrencies):
                self._measure(server, client, index, concurrency)
            if self.boot.last:
                self._answers(server)
                self._accuracy(server)

    def prepare(self) -> None:
        """Start the server's process; on standby it only imports, until it is this boot's turn."""
        if self.server is not None:
            return
        # A free port is looked for now: hours may lie between the plan and this boot.
        self.port = self.recipe.server.port or free_port()
        if self.recipe.server.port:
            check_port(self.port)
        command = commands.server_command(
            self.recipe, self.boot.arm, self.model, self.port, self.python, commands.environment()
        )
        words = command.all_words
        if self.recipe.server.standby:
            words = commands.on_standby(words, self._go.resolve())
        words, env = [*self.tracing.wrapper, *words], {**command.env, **self.tracing.env}
        log, grace_s = self.folder / "server.log", self.tracing.grace_s
        process = Guarded(words, env, log, self.secrets, self.cwd, grace_s)
        self.server = Server(self.boot.arm, process, self.port)

    @contextmanager
    def _scrubbed(self) -> Iterator[None]:
        """Whatever the client and lm_eval wrote is without secrets once they are gone, however that went."""
        try:
            yield
        finally:
            for folder in (self.folder, self.out / "accuracy" / self.boot.arm):
                run_files.scrub(folder, self.secrets)

    def stop(self) -> None:
        """End the server if it was started, however far it came."""
        if self.server is not None:
            self.server.process.stop()

    @property
    def _concurrencies(self) -> list[int]:
        return self.recipe.client.concurrencies if self.boot.measures else []

    def _client(self) -> Client:
        spec = self.recipe.client
        together = self.recipe.server.launcher == "module"
        return Client(self._jobs(), self.folder, self.cwd, spec.timeout_s, together, self.secrets)

    def _jobs(self) -> list[Job]:
        jobs = []
        for concurrency in self._concurrencies:
            seed = schedule.seed(self.recipe, self.boot.pair, concurrency)
            if (warm := self._warmup_prompts(concurrency)) > 0:
                # Other prompts than the run's: nothing may be known when it starts.
                jobs.append(self._job(f"warmup_c{concurrency}", concurrency, seed + 500_000, warm))
            jobs.append(self._job(f"c{concurrency}", concurrency, seed, None))
        return jobs

    def _warmup_prompts(self, concurrency: int) -> int:
        asked = self.recipe.client.warmup_prompts
        return concurrency if asked is None else asked

    def _job(self, name: str, concurrency: int, seed: int, prompts: int | None) -> Job:
        command = commands.client_command(
            self.recipe, self.model, concurrency, self.python, prompts, commands.environment()
        )
        port = None if self.recipe.server.port == DEFAULT_PORT else self.port
        added = commands.saving(self.folder.resolve(), f"{name}.json", seed, port)
        added += self.tracing.client if prompts is None else ()
        return Job(name, commands.Command(command.words, command.env, added), self.folder / f"{name}.json")

    def _measure(self, server: Server, client: Client, index: int, concurrency: int) -> None:
        began, started, hits = monotonic(), datetime.now().astimezone(), cache_hits(server)
        warm = self._warmup_prompts(concurrency) > 0
        position = index * (2 if warm else 1)
        when = f"while {self.boot.arm} was measured at concurrency {concurrency}"
        if warm:
            _refuse_failures(_finish(client, position, server, when), self.boot.arm, concurrency, server)
            started = datetime.now().astimezone()
        result = _finish(client, position + warm, server, when)
        self._learn(server)
        extra = {"cold": not warm, "prefix_cache_hit_tokens": increase(hits, cache_hits(server))}
        record = run_files.run_record(self.recipe, self.facts, concurrency, result, started, extra)
        run_files.save(
            schedule.run_file(self.out, self.boot.arm, self.boot.pair, concurrency), record, self.secrets
        )
        said = summary(result)
        self.meter.finish(
            "run", monotonic() - began, f"pair {self.boot.pair}: {self.boot.arm} c{concurrency}: {said}"
        )

    def _learn(self, server: Server) -> None:
        """Version and what the log says about the up-projection."""
        version = commands.version_in(server.get("/version"))
        self.facts = run_files.replace_facts(self.facts, version, gemm_line(server.process.log))

    def _check_tail(self, server: Server) -> None:
        """Arms that differ by LATENT_MOE_TAIL alone are the same arm where nothing in the server reads it."""
        tail = tail_of(self.recipe, self.boot.arm)
        said = gemm_line(server.process.log) or ""
        if tail is None or (said.startswith("tail ") and not _is_refusal(said)):
            return
        if _is_refusal(said):
            if run_files.tp_size([*self.recipe.server.args, *self.arm.args]) == 1:
                return  # one rank has nothing to shard: said in the record, and meant where a recipe asks for it
            raise ServerError(f"server {self.boot.arm}: {said}", server.process.tail())
        raise ServerError(
            f"server {self.boot.arm} says nothing about LATENT_MOE_TAIL={tail}: its vLLM does not run this package's "
            "runner (latent_moe must be installed beside it, the model be one it knows, and the log level let INFO pass)",
            server.process.tail(),
        )

    def _answers(self, server: Server) -> None:
        target = self.out / "parity" / f"{self.boot.arm}.json"
        if self.recipe.parity is None or target.is_file():
            return
        self.meter.say(f"{self.boot.arm} answers greedily")
        preset = self.recipe.model.preset
        vocabulary = model_config(preset, self.recipe.model.changes)["vocab_size"] if preset else None
        with _blaming(server, f"while {self.boot.arm} answered greedily"):
            said = answers.ask(server.url, self.model, self.recipe.parity, vocabulary)
        record = run_files.answers_record(self.recipe, self.facts, self.model, said)
        run_files.save(target, record, self.secrets)

    def _accuracy(self, server: Server) -> None:
        marker = schedule.accuracy_marker(self.out, self.boot.arm)
        if self.recipe.accuracy is None or marker.is_file():
            return
        self.meter.say(f"{self.boot.arm}: accuracy")
        target = self.out / "accuracy" / self.boot.arm
        command = commands.accuracy_command(self.recipe, server.url, target.resolve(), commands.environment())
        process = Guarded(command.all_words, {}, self.folder / "accuracy.log", self.secrets, self.out)
        with _blaming(server, "during the accuracy run"):
            try:
                code = process.wait(self.recipe.accuracy.timeout_s)
            finally:
                process.stop()
            if code:
                raise ClientError(
                    f"the accuracy run of {self.boot.arm} failed (exit code {code})", process.tail()
                )
        schedule.write_whole(marker, {})


@contextmanager
def _blaming(server: Server, when: str) -> Iterator[None]:
    """What fails inside is the server's doing if the server died meanwhile."""
    try:
        yield
    except LatentMoEError:
        server.check_dying(when)
        raise
    server.check_alive(when)


def _finish(client: Client, position: int, server: Server, when: str) -> dict:
    """The client's result; a server that died meanwhile is named as the cause of whatever the client says."""
    with _blaming(server, when):
        result = client.finish(position, lambda: server.check_alive(when))
    if result.get("failed"):
        server.check_dying(when)
    return result


def _refuse_failures(result: dict, arm: str, concurrency: int, server: Server) -> None:
    """A server that refuses warm-up requests will refuse the measured ones: say so before time is spent on them."""
    if result.get("failed"):
        raise ServerError(
            f"server {arm} failed {result['failed']} of {result.get('num_prompts')} warm-up requests at "
            f"concurrency {concurrency}",
            server.process.tail(),
        )


def _is_refusal(said: str) -> bool:
    return " refused, " in said


def summary(result: dict) -> str:
    """One run in a few words."""
    rate = result.get("total_token_throughput")
    said = f"{rate:.1f} tok/s in all" if isinstance(rate, int | float) else "no throughput"
    return f"{said}, {result['failed']} requests FAILED" if result.get("failed") else said


def gemm_line(log: Path) -> str | None:
    """What the server's log says about the up-projection's GEMM; None when it says nothing."""
    text = log.read_text(encoding="utf-8", errors="replace")
    for pattern in _GEMM:
        if found := pattern.search(text):
            return found[1].strip()
    return _K3_SHARDED if _K3_SHARDED in text else None


def cache_hits(server: Server) -> float | None:
    """Prompt tokens that the server took from its prefix cache since it started, None when it does not say."""
    found = _CACHE_HITS.findall(server.get("/metrics") or "")
    return sum(map(float, found)) if found else None


def increase(before: float | None, after: float | None) -> int | None:
    """after - before, None unless both are known."""
    return None if before is None or after is None else round(after - before)
