"""The resolved plan of a benchmark: every command, environment, path, port, seed and the order of server sessions.

resolve.py makes it from a recipe and a machine; `--dry-run` prints it, and the sessions execute its entries: nothing is
decided after it. What the machine's environment holds for ${NAME} is looked up when a command starts.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from latent_moe.lab.bench.commands import Command, on_standby
from latent_moe.lab.bench.supervisor import GRACE_S

# What is known before the first server start or run has been measured (seconds).
FIRST_GUESS_S = {"start": 60.0, "run": 30.0}


@dataclass(frozen=True)
class ClientRun:
    """One run of the client. `run_file` is where `bench` saves its result with `record` beside it; None: a warm-up, or a
    run that is thrown away."""

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

    `server` is None where the server at `url` runs already; `cleanup` ends a container. Pair 0 is the start that is thrown
    away. `order` is its place in the plan, `tail` the LATENT_MOE_TAIL that its log must confirm unless it `may_refuse`; `go` the
    file that a server on standby waits for, `known_versions` what the arm's earlier runs were measured with; `problem` why
    the entry cannot run on this machine.
    """

    arm: str
    pair: int
    order: int
    model: str
    port: int
    url: str
    server: Command | None
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
    cleanup: Sequence[str] = ()
    ranks: int | None = None
    engine: str = "vllm"
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
    def discarded(self) -> bool:
        """Whether the whole session is thrown away."""
        return self.pair == 0

    @property
    def process(self) -> Command | None:
        """The server's command as it is started, None where nothing is."""
        if self.go is None or self.server is None:
            return self.server
        return Command(on_standby(self.server.all_words, self.go), self.server.env)

    def commands(self) -> list[dict[str, Any]]:
        """What it starts, in order: kind, arm, pair, the command as a person types it, what `bench` adds."""
        ahead = "imports before its turn" if self.go else ""
        notes = "; ".join(filter(None, [self.problem or self.note, ahead]))
        entries = [self._shown("server", self.server, note=notes)] if self.server else []
        for run in self.runs:
            kind = "client" if run.run_file else "discarded" if self.discarded else "warmup"
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
    discards: Mapping[str, SessionEntry] = field(default_factory=dict)

    @property
    def command(self) -> str:
        """The command line that measures it."""
        return f"latent-moe bench {self.name}"

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

    def with_discarded(self) -> "Plan":
        """The plan behind the start that is thrown away: of the arm that measures first, where `discards` has it."""
        first = next((session for session in self.sessions if session.measured), None)
        if first is None or first.arm not in self.discards:
            return self
        return replace(self, sessions=[self.discards[first.arm], *self.sessions])

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
                **{
                    "arm": each.arm,
                    "pair": each.pair,
                    "order": each.order,
                    "port": each.port,
                    "url": each.url,
                },
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
        order = " ".join(session.arm for session in self.sessions if not session.discarded)
        lines = [f"# {self.title}", f"# sessions in order: {order}"]
        lines += [f"# thrown away before them: {each.arm}" for each in self.sessions if each.discarded]
        lines += [f"# {self.notes}"] if self.notes else []
        lines += [f"# {estimate_text(self)}", f"# results: {self.out}"]
        for session in self.sessions:
            which = "thrown away" if session.discarded else f"{session.order}, pair {session.pair}"
            where = f"port {session.port}" if session.server else session.url
            head = f"# session {which}: {session.arm} on {where}"
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
