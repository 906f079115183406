"""The resolved plan of a benchmark: every command, environment, path, port, seed and the order of server sessions.

`resolve` makes it from a recipe and a machine; `--dry-run` prints it, and the sessions execute its entries: nothing is
decided after it. What the machine's environment holds for ${NAME} is looked up when a command starts.
"""

import json
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from latent_moe.errors import InputError
from latent_moe.lab.bench.commands import ArmCommands, Command, interpreter, on_standby
from latent_moe.lab.bench.recipe import ParitySpec, Recipe, number_after
from latent_moe.lab.bench.server import free_ports
from latent_moe.lab.bench.supervisor import GRACE_S
from latent_moe.lab.secrets import secret_values
from latent_moe.platform import describe

SCHEMA = 1
# What is known before the first server start or run has been measured (seconds).
FIRST_GUESS_S = {"start": 60.0, "run": 30.0}
_LOWEST_TOKEN_ID = 16


@dataclass(frozen=True)
class ClientRun:
    """One run of the client. `run_file` is where `bench` saves its result with `record` beside it; None: a warm-up."""

    name: str
    concurrency: int
    seed: int
    command: Command
    result: Path
    run_file: Path | None = None
    record: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class GreedyAnswers:
    """Prompts that the server answers greedily, one by one, into `file` with `record`."""

    prompts: Sequence[str | list[int]]
    max_tokens: int
    file: Path
    record: Mapping[str, Any]


@dataclass(frozen=True)
class AccuracyRun:
    """An lm_eval run; `marker` exists once it has gone through."""

    command: Command
    timeout_s: float
    folder: Path
    marker: Path
    note: str


@dataclass(frozen=True)
class SessionEntry:
    """One server session: the server's start, the client's runs in order, what is asked besides, the end.

    `order` is its place in the plan, `tail` the LATENT_MOE_TAIL that its log must confirm unless it `may_refuse`; `go` the
    file that a server on standby waits for, `known_versions` what the arm's earlier runs were measured with; `problem` why
    the entry cannot run on this machine.
    """

    arm: str
    pair: int
    order: int
    model: str
    port: int
    server: Command
    folder: Path
    cwd: Path
    startup_timeout_s: float
    run_timeout_s: float
    tail: str | None
    may_refuse: bool
    shared_client: bool
    runs: Sequence[ClientRun] = ()
    answers: GreedyAnswers | None = None
    accuracy: AccuracyRun | None = None
    go: Path | None = None
    grace_s: float = GRACE_S
    known_versions: frozenset[str] = frozenset()
    note: str = ""
    problem: str | None = None

    @property
    def measured(self) -> list[ClientRun]:
        """The runs that are no warm-ups."""
        return [run for run in self.runs if run.run_file is not None]

    @property
    def extra_files(self) -> list[Path]:
        """What tells that the answers and the accuracy of this entry are there."""
        files = [self.answers.file] if self.answers else []
        return files + ([self.accuracy.marker] if self.accuracy else [])

    @property
    def process(self) -> Command:
        """The server's command as it is started."""
        if self.go is None:
            return self.server
        return Command(on_standby(self.server.all_words, self.go), self.server.env)

    def commands(self) -> list[dict[str, Any]]:
        """What it starts, in order: kind, arm, pair, the command as a person types it, what `bench` adds."""
        ahead = "imports before its turn" if self.go else ""
        notes = "; ".join(filter(None, [self.problem or self.note, ahead]))
        entries = [self._shown("server", self.server, note=notes)]
        for run in self.runs:
            kind = "client" if run.run_file else "warmup"
            entries.append(self._shown(kind, run.command, concurrency=run.concurrency))
        if self.accuracy:
            entries.append(self._shown("accuracy", self.accuracy.command, note=self.accuracy.note))
        return entries

    def _shown(self, kind: str, command: Command, **more: Any) -> dict[str, Any]:
        shown = {"kind": kind, "arm": self.arm, "pair": self.pair, "command": command.shown()}
        return {**shown, "added": Command(command.added).shown(), **more}


@dataclass(frozen=True)
class Plan:
    """Server sessions in order, the folder that holds their results, and what the manifest says of them all."""

    name: str
    title: str
    notes: str
    out: Path
    sessions: Sequence[SessionEntry]
    device: str
    settings: Mapping[str, Any]
    baseline: str
    candidates: Sequence[str]
    parameters: Mapping[str, Any]
    model_config: Mapping[str, Any] | None
    secrets: Sequence[str]

    @property
    def command(self) -> str:
        """The command line that measures it."""
        return f"latent-moe bench {self.name}"

    @property
    def standby(self) -> bool:
        """Whether the next server's process starts while the one before is measured."""
        return any(session.go for session in self.sessions)

    def pair_is_whole(self, pair: int) -> bool:
        """Whether every run of a pair is there."""
        runs = [run for session in self.sessions if session.pair == pair for run in session.measured]
        return all(run_facts(run.run_file) is not None for run in runs)

    def versions(self) -> dict[str, set[str]]:
        """The server versions that the runs which are there were measured with, by arm."""
        versions: dict[str, set[str]] = {session.arm: set() for session in self.sessions}
        for session in self.sessions:
            for run in session.measured:
                version = (run_facts(run.run_file) or {}).get("vllm_version")
                versions[session.arm] |= {version} if version else set()
        return versions

    def remaining(self) -> "Plan":
        """The sessions of every pair that is not whole, and those whose arm has yet to answer or to be scored.

        Half a pair is measured again: its arms must be neighbours in time.
        """
        left, versions = [], self.versions()
        for session in self.sessions:
            answers = session.answers if session.answers and not session.answers.file.is_file() else None
            accuracy = (
                session.accuracy if session.accuracy and not session.accuracy.marker.is_file() else None
            )
            todo = replace(
                session, answers=answers, accuracy=accuracy, known_versions=frozenset(versions[session.arm])
            )
            if not self.pair_is_whole(session.pair):
                left.append(todo)
            elif answers or accuracy:
                left.append(replace(todo, runs=()))
        return replace(self, sessions=left)

    def set_aside(self) -> list[Path]:
        """Move what is there of the runs that this plan measures out of runs/ into incomplete/; returns what was moved."""
        files = [run.run_file for session in self.sessions for run in session.measured]
        return [_move(path, self.out / "incomplete") for path in files if path and path.is_file()]

    def estimate_s(self) -> float:
        """How long it takes, by what a start and a run take as a rule: the first session of its own corrects that."""
        runs = sum(len(session.measured) for session in self.sessions)
        return len(self.sessions) * FIRST_GUESS_S["start"] + runs * FIRST_GUESS_S["run"]

    def as_json(self) -> dict[str, Any]:
        """The plan for programs; `commands` are in the order in which they start."""
        sessions: list[dict[str, Any]] = [
            {
                **{"arm": each.arm, "pair": each.pair, "order": each.order, "port": each.port},
                **{"folder": str(each.folder), "seeds": [run.seed for run in each.runs]},
                "answers": str(each.answers.file) if each.answers else None,
                "commands": each.commands(),
            }
            for each in self.sessions
        ]
        commands = [command for session in sessions for command in session["commands"]]
        answer = {"recipe": self.name, "out": str(self.out), "device": self.device}
        return {**answer, "estimate_s": self.estimate_s(), "sessions": sessions, "commands": commands}

    def text(self) -> str:
        """The plan for people: the order of sessions first, then each session's commands below a comment."""
        order = " ".join(session.arm for session in self.sessions)
        lines = [f"# {self.title}", f"# sessions in order: {order}"]
        lines += [f"# {self.notes}"] if self.notes else []
        lines += [f"# {estimate_text(self)}", f"# results: {self.out}"]
        for session in self.sessions:
            head = f"# session {session.order}, pair {session.pair}: {session.arm} on port {session.port}"
            lines += ["", f"{head}, in {session.folder}"]
            lines += [line for command in session.commands() for line in _lines(command)]
            if session.answers:
                count, tokens = len(session.answers.prompts), session.answers.max_tokens
                lines.append(f"# {count} greedy answers of {tokens} tokens: {session.answers.file}")
        return "\n".join(lines)


def run_facts(path: Path | None) -> dict[str, Any] | None:
    """What `bench` wrote beside a run's figures; None for a run that is not there or cannot be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))["latent_moe"] if path else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def estimate_text(plan: Plan) -> str:
    """The estimate in words, with what it rests on."""
    runs = sum(len(session.measured) for session in plan.sessions)
    guess = f"{FIRST_GUESS_S['start']:.0f} s a start and {FIRST_GUESS_S['run']:.0f} s a run"
    minutes = max(1, round(plan.estimate_s() / 60))
    return f"{len(plan.sessions)} server starts, {runs} runs: about {minutes} min, guessed from {guess}"


def _lines(command: dict[str, Any]) -> list[str]:
    at = f" at concurrency {command['concurrency']}" if "concurrency" in command else ""
    note = f" ({command['note']})" if command.get("note") else ""
    lines = [f"# {command['kind']}{at}{note}", command["command"]]
    return [*lines, f"#   bench adds: {command['added']}"] if command["added"] else lines


def _move(path: Path, folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    number = sum(1 for _ in folder.glob(f"{path.stem}*"))
    target = folder / f"{path.stem}.{number}.json"
    path.replace(target)
    return target


def arm_order(arms: list[str], index: int) -> list[str]:
    """The arms of the pair (of more than two arms: the round) number `index`, from 0: A B, B A, A B ...

    Rotations, so that a drift of the machine falls on all arms alike: in as many rounds as there are arms each arm stands
    once in every place. With more than two arms the next rotations are reversed, so that each arm also stands as often
    before as after each other one.
    """
    turns, turned = divmod(index, len(arms))
    rotated = [*arms[turned:], *arms[:turned]]
    return rotated[::-1] if len(arms) > 2 and turns % 2 else rotated


def resolve(
    recipe: Recipe,
    out: str | Path,
    environment: Mapping[str, str] = os.environ,
    ports: Sequence[int] | None = None,
    device: str | None = None,
) -> Plan:
    """The whole plan of a recipe on this machine, whatever is measured already.

    `ports` are those that the servers take turns on (default: free ones); `environment` is where an arm's interpreter
    and the secrets are looked up; `device` replaces the machine's own name.
    """
    count = 2 if recipe.server.standby else 1
    ports = [recipe.server.port] if recipe.server.port else list(ports or free_ports(count))[:count]
    device = device or recipe.device or device_name(tp_size(recipe.server.args))
    resolver = _Resolver(recipe, Path(out), environment, ports, device)
    slots = [
        (pair, arm) for pair in range(1, recipe.pairs + 1) for arm in arm_order(list(recipe.arms), pair - 1)
    ]
    return Plan(
        name=recipe.name,
        title=recipe.title,
        notes=recipe.notes,
        out=resolver.out,
        sessions=[resolver.session(arm, pair, order) for order, (pair, arm) in enumerate(slots)],
        device=device,
        settings=recipe.settings(),
        baseline=recipe.role_of("baseline") if recipe.with_role("baseline") else "",
        candidates=recipe.with_role("candidate"),
        parameters=resolver.parameters(),
        model_config=recipe.config(),
        secrets=resolver.secrets(),
    )


@dataclass(frozen=True)
class _Resolver:
    """Resolves the parts of one recipe."""

    recipe: Recipe
    out: Path
    environment: Mapping[str, str]
    ports: Sequence[int]
    device: str

    def session(self, arm: str, pair: int, order: int) -> SessionEntry:
        """The session of one arm in one pair."""
        recipe, side = self.recipe, self.recipe.arms[arm]
        python, problem = self._interpreter(arm)
        build = ArmCommands(recipe, arm, python)
        port = self.ports[order % len(self.ports)]
        stem = f"{order:02d}_{arm}"
        attempt = 1 + sum(1 for _ in (self.out / "logs").glob(f"{stem}_*"))
        folder = self.out / "logs" / f"{stem}_{attempt}"
        last = pair == recipe.pairs
        return SessionEntry(
            arm=arm,
            pair=pair,
            order=order,
            model=build.model,
            port=port,
            server=build.server(port),
            folder=folder,
            cwd=self.out,
            startup_timeout_s=recipe.server.startup_timeout_s,
            run_timeout_s=recipe.client.timeout_s,
            tail=recipe.tail_of(arm),
            # One rank has nothing to shard: its refusal is meant where a recipe asks for it.
            may_refuse=tp_size(recipe.server_words(arm)) == 1,
            shared_client=recipe.server.launcher == "module",
            runs=list(self._runs(build, pair, order, port, folder.absolute())),
            answers=self._answers(arm, build.model, recipe.parity) if last and recipe.parity else None,
            accuracy=self._accuracy(build, port) if last and recipe.accuracy else None,
            go=(folder / "server.go").absolute() if recipe.server.standby else None,
            note=side.note,
            problem=problem,
        )

    def _interpreter(self, arm: str) -> tuple[str | None, str | None]:
        """The arm's python, or the reason why it cannot be had here: a plan shows the command all the same."""
        try:
            return interpreter(self.recipe.arms[arm], self.environment), None
        except InputError as error:
            return None, str(error)

    def _runs(
        self, build: ArmCommands, pair: int, order: int, port: int, folder: Path
    ) -> Iterator[ClientRun]:
        """The client's runs of a session; the prompts are equal for all arms of a pair, different elsewhere."""
        client = self.recipe.client
        for index, concurrency in enumerate(client.concurrencies):
            seed = self.recipe.seed * 1_000_000 + pair * 1_000 + index
            warm = concurrency if client.warmup_prompts is None else client.warmup_prompts
            if warm:
                # Other prompts than the run's: nothing may be known when it starts.
                name, other = f"warmup_c{concurrency}", seed + 500_000
                result = folder / f"{name}.json"
                command = build.client(concurrency, warm, port, other, result)
                yield ClientRun(name, concurrency, other, command, result)
            result = folder / f"c{concurrency}.json"
            prompts = client.prompts_per_concurrency * concurrency
            command = build.client(concurrency, prompts, port, seed, result)
            record = self._record(build.arm, pair, order, concurrency, seed)
            run_file = self.out / "runs" / f"{build.arm}_pair{pair}_c{concurrency}.json"
            yield ClientRun(f"c{concurrency}", concurrency, seed, command, result, run_file, record)

    def _arm_record(self, arm: str) -> dict[str, Any]:
        role = self.recipe.arms[arm].role
        return {"schema": SCHEMA, "arm": arm, "role": role, "tail": self.recipe.tail_of(arm)}

    def _record(self, arm: str, pair: int, order: int, concurrency: int, seed: int) -> dict[str, Any]:
        """What a run file says about its run before it has run."""
        client = self.recipe.client
        return {
            **self._arm_record(arm),
            "pair": pair,
            "order": order,
            "concurrency": concurrency,
            "isl": client.isl,
            "osl": client.osl,
            "seed": seed,
            "cold": client.warmup_prompts == 0,
            "prefix_caching": prefix_caching(self.recipe.server_words(arm)),
            "device": self.device,
            "recipe": self.recipe.name,
        }

    def _answers(self, arm: str, model: str, spec: ParitySpec) -> GreedyAnswers:
        config = self.recipe.config()
        prompts = greedy_prompts(spec, config["vocab_size"] if config else None)
        record = {**self._arm_record(arm), "device": self.device, "model": model}
        return GreedyAnswers(prompts, spec.max_tokens, self.out / "parity" / f"{arm}.json", record)

    def _accuracy(self, build: ArmCommands, port: int) -> AccuracyRun:
        spec = self.recipe.accuracy
        assert spec is not None
        folder = (self.out / "accuracy" / build.arm).absolute()
        command = build.accuracy(f"http://127.0.0.1:{port}", folder)
        marker = self.out / "state" / f"accuracy_{build.arm}.done"
        return AccuracyRun(command, spec.timeout_s, folder, marker, spec.note)

    def secrets(self) -> list[str]:
        """What must not be written, of every arm: a client's or a library's message may name another arm's."""
        recipe, arms = self.recipe, list(self.recipe.arms.values())
        env = {f"{index} {name}": value for index, arm in enumerate(arms) for name, value in arm.env.items()}
        accuracy = recipe.accuracy.command if recipe.accuracy else []
        words = [*recipe.server.args, *recipe.client.args, *accuracy]
        words += [word for arm in arms for word in arm.args]
        return secret_values({**recipe.server.env, **env}, words)

    def parameters(self) -> dict[str, Any]:
        """What the manifest says the results depend on, with what `predict` needs as far as the recipe says it."""
        recipe, client = self.recipe, self.recipe.client
        arms = {name: {"role": arm.role, "tail": recipe.tail_of(name)} for name, arm in recipe.arms.items()}
        known = {
            "tp": tp_size(recipe.server.args),
            "max_num_batched_tokens": number_after(recipe.server.args, "--max-num-batched-tokens"),
            **_layer_sizes(recipe.config()),
        }
        return {
            "model": recipe.model.preset or recipe.model.name,
            "model_changes": recipe.model.changes,
            "server_arguments": recipe.server.args,
            "arms": arms,
            "isl": client.isl,
            "osl": client.osl,
            "concurrencies": client.concurrencies,
            "prompts_per_concurrency": client.prompts_per_concurrency,
            "warmup_prompts": client.warmup_prompts,
            "client_arguments": client.args,
            "pairs": recipe.pairs,
            "seed": recipe.seed,
            **{name: value for name, value in known.items() if value is not None},
        }


def _layer_sizes(config: dict[str, Any] | None) -> dict[str, Any]:
    if config is None:
        return {}
    return {
        "experts": {"number": config["num_experts"], "per_token": config["num_experts_per_token"]},
        "moe_layers": config["num_hidden_layers"] - config["first_k_dense_replace"],
        "config": {
            "hidden_size": config["hidden_size"],
            "latent_size": config["routed_expert_hidden_size"],
        },
    }


def greedy_prompts(spec: ParitySpec, vocab_size: int | None) -> list[str | list[int]]:
    """The recipe's texts, or token ids drawn with a fixed seed (the same for every arm and every run)."""
    if spec.prompts:
        return list(spec.prompts)
    draw = random.Random(51253)
    top = vocab_size or 1024
    return [[draw.randrange(_LOWEST_TOKEN_ID, top) for _ in range(spec.length)] for _ in range(spec.count)]


def device_name(ranks: int | None) -> str:
    """What this machine is: "2 x NVIDIA H200", "Xeon ..., 2 cores"; `ranks` None: all devices that there are."""
    here = describe()
    if here.kind == "unknown":
        return "unknown"
    if here.kind == "cpu":
        return f"{here.device_name}, {os.cpu_count()} cores"
    count = ranks or here.device_count
    return here.device_name if count == 1 else f"{count} x {here.device_name}"


def tp_size(arguments: Sequence[str]) -> int | None:
    """The server's --tensor-parallel-size, None where it is not given as a number."""
    return number_after(arguments, "--tensor-parallel-size") or number_after(arguments, "-tp")


def prefix_caching(arguments: Sequence[str]) -> bool | None:
    """Whether the server caches prefixes, None where its arguments do not say."""
    if "--no-enable-prefix-caching" in arguments:
        return False
    return True if "--enable-prefix-caching" in arguments else None
