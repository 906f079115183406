"""bench: real vLLM servers of all arms, started in turn, each driven by vLLM's own client, saved run by run."""

import fcntl
import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from latent_moe.errors import InputError, LatentMoEError
from latent_moe.files import write_json
from latent_moe.lab import recordings
from latent_moe.lab.bench import machine, run_files
from latent_moe.lab.bench.machine import reserved_ports
from latent_moe.lab.bench.model_dir import write_model
from latent_moe.lab.bench.plan import Plan, SessionEntry
from latent_moe.lab.bench.recipe import Recipe, load_recipe
from latent_moe.lab.bench.resolve import resolve
from latent_moe.lab.bench.server import ServerError
from latent_moe.lab.bench.session import Meter, Notify, ServerSession, lines

_STATE, _LOCK = "recipe.json", "bench.lock"
# How long the last server may take to end and to give its device memory back.
_FREE_S = 120.0


def run(
    recipe: str | Path | Recipe,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    pairs: int | None = None,
    notify: Notify = lines,
) -> Path:
    """Run a recipe; returns the folder with its results (manifest.json, runs/, parity/, accuracy/, logs/).

    `recipe` is a shipped recipe's name, a .toml file or a Recipe; `pairs` replaces the recipe's number. With `resume`
    a folder that was interrupted is completed: whole pairs and the answers that are there stay, half pairs are measured
    again.

    Raises InputError for a recipe or folder that cannot be used, ServerError or ClientError (with `log_tail`) when a
    server or the client fails. Whatever happens, no process is left and every file is whole.
    """
    chosen = (recipe if isinstance(recipe, Recipe) else load_recipe(recipe)).with_pairs(pairs)
    with reserved_ports(2) as ports:
        plan = resolve(chosen, out or default_folder(chosen.name), ports=ports)
        execute(plan, resume, notify)
    return plan.out


def execute(plan: Plan, resume: bool, notify: Notify) -> None:
    """Measure what is left of a plan."""
    check_programs(plan)
    _check_folder(plan, resume)
    with _alone_in(plan.out):
        _prepare(plan)
        todo = plan.remaining()
        todo.set_aside()
        _run_sessions(plan, todo.with_discarded(), notify)


def default_folder(name: str) -> Path:
    """runs/bench/<time>_<recipe's name> below the current folder."""
    return Path("runs") / "bench" / f"{datetime.now().astimezone():%Y%m%d-%H%M%S}_{name}"


def check_programs(plan: Plan) -> None:
    """Raise InputError for a program that a plan starts and this machine lacks: known now, not after hours."""
    for entry in plan.sessions:
        if entry.problem:
            raise InputError(entry.problem)
        wanted = {f"the server of {entry.arm}": entry.process}
        if entry.accuracy:
            wanted["the accuracy step"] = entry.accuracy.command
        for purpose, command in wanted.items():
            program = command.expanded(os.environ).words[0] if command else None
            if program and shutil.which(program) is None:
                raise InputError(f"{program}, which {purpose} needs, is not on the PATH (or not executable)")


@contextmanager
def _alone_in(out: Path) -> Iterator[None]:
    """One bench a folder: two would serve on the same devices and overwrite each other's runs. The lock goes with the
    process that holds it, however that ends. Raises InputError where another bench is at work."""
    path = out / "state" / _LOCK
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+", encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InputError(
            f"{out} cannot hold results ({getattr(error, 'strerror', None) or error})"
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.seek(0)
            raise InputError(f"a bench is at work in {out} (process {file.read().strip()})") from error
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


def _prepare(plan: Plan) -> None:
    """Write what a later --resume needs, and the model."""
    try:
        settings = run_files.hidden(dict(plan.settings), plan.secrets)
        write_json(plan.out / "state" / _STATE, {"recipe": plan.name, "settings": settings})
        if plan.model_config:
            write_model(plan.out / plan.sessions[0].model, dict(plan.model_config))
    except OSError as error:
        raise InputError(f"{plan.out} cannot hold results ({error.strerror or error})") from error


def _check_folder(plan: Plan, resume: bool) -> None:
    out, state = plan.out, plan.out / "state" / _STATE
    try:
        measured, filled = state.is_file(), out.exists() and bool({*out.iterdir()} - {out / "state"})
    except (OSError, ValueError) as error:
        raise InputError(
            f"{out} cannot hold results ({getattr(error, 'strerror', None) or error})"
        ) from error
    if measured and not resume:
        raise InputError(
            f"{out} holds results already: --resume goes on with them, another --out starts anew"
        )
    if measured:
        _check_settings(plan, state)
    elif resume:
        raise InputError(f"{out}: nothing to resume there")
    elif filled:
        raise InputError(f"{out} is not empty")


def _check_settings(plan: Plan, state: Path) -> None:
    """Raise InputError naming the first field by which the recipe differs from the one that was measured."""
    now = json.loads(json.dumps(run_files.hidden(dict(plan.settings), plan.secrets)))
    try:
        written = json.loads(state.read_text(encoding="utf-8"))
        before = written["settings"] if "settings" in written else _earlier(plan, written["recipe"])
        changed = sorted(name for name in {*before, *now} if name in before and before[name] != now.get(name))
        changed += [] if "settings" not in written else sorted({*now} - {*before})
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{state} does not say with which recipe this was measured ({error!r})") from error
    if changed:
        name = changed[0]
        values = f"{json.dumps(before.get(name))}, not {json.dumps(now.get(name))}"
        raise InputError(f"{plan.out} was measured with another recipe: {name} was {values}")


def _earlier(plan: Plan, name: str) -> dict[str, Any]:
    """What a folder of an earlier version says of its recipe: its name, and in the manifest where there is one the rest."""
    if name != plan.name:
        raise InputError(f"{plan.out} was measured with another recipe: {name}, not {plan.name}")
    if not (plan.out / recordings.MANIFEST).is_file():
        return {}
    parameters = recordings.load_manifest(plan.out).parameters
    fields = {"server_arguments": "server.args", "client_arguments": "client.args", "seed": "seed"}
    fields |= {
        key: f"client.{key}" for key in ("osl", "concurrencies", "prompts_per_concurrency", "warmup_prompts")
    }
    return {field: parameters[key] for key, field in fields.items() if key in parameters}


def _run_sessions(plan: Plan, todo: Plan, notify: Notify) -> None:
    """The sessions of `todo`, which is what is left of `plan`."""
    meter = meter_of(todo, notify)
    if not todo.sessions:
        meter.say(f"everything in {plan.out} is measured already")
    devices = machine.device_states()
    for line in machine.in_use(devices):
        meter.say(line)
    versions: dict[str, str] = {}
    failed: dict[str, ServerError] = {}
    sessions = [ServerSession(todo, entry, new_identity(entry), meter) for entry in todo.sessions]
    try:
        for index, session in enumerate(sessions):
            entry = session.entry
            if entry.arm in failed:
                meter.drop("start", 1)
                meter.drop("run", len(entry.measured))
                continue
            machine.wait_until_free(devices, _FREE_S)
            if index:
                _wait_gone(sessions[index - 1])
            following = next((each for each in sessions[index + 1 :] if each.entry.arm not in failed), None)
            ahead = following if following and following.entry.go else None
            try:
                session.run(when_up=ahead.prepare if ahead else lambda: None)
            except ServerError as error:
                if session.is_up or not _others_remain(plan, {*failed, entry.arm}):
                    raise
                failed[entry.arm] = error
                meter.say(f"{entry.arm} is left out: {error}")
                continue
            versions[f"{entry.engine} ({entry.arm})"] = session.facts.vllm_version or "unknown"
            if not entry.discarded:
                run_files.write_manifest(plan, versions)
                recommend(plan, entry, meter.say)
    finally:
        for session in sessions:
            session.stop()
    if failed:
        raise next(iter(failed.values()))


def _wait_gone(session: ServerSession) -> None:
    """Wait until no process of an ended session is left. Raises ServerError naming one that stays, as those do that hang in
    a driver."""
    process = session.server.process if session.server else None
    deadline = time.monotonic() + _FREE_S
    while process and (left := process.left()):
        if time.monotonic() > deadline:
            pids = ", ".join(str(each.pid) for each in left)
            raise ServerError(f"processes {pids} of server {session.entry.arm} do not end", process.tail())
        time.sleep(0.5)


def _others_remain(plan: Plan, failed: set[str]) -> bool:
    """Whether a comparison is left without these arms."""
    return plan.baseline not in failed and bool({*plan.candidates} - failed)


def meter_of(plan: Plan, notify: Notify) -> Meter:
    """Counts the steps of a plan."""
    runs = sum(len(entry.measured) for entry in plan.sessions)
    return Meter(notify, {"start": len(plan.sessions), "run": runs})


def new_identity(entry: SessionEntry) -> str:
    """A name for one server start that no other has, whichever plan it is from."""
    return f"{entry.order}-{uuid.uuid4().hex[:8]}"


def recommend(plan: Plan, entry: SessionEntry, say: Callable[[str], None]) -> None:
    """After whole pairs: how many pairs would show a 3 % effect with the noise seen so far, for each candidate.

    Advice never ends a benchmark: where the runs allow none, that is said and measuring goes on.
    """
    if entry.pair < 2 or not entry.runs or not plan.pair_is_whole(entry.pair):
        return
    from latent_moe.lab.results.comparison import recommend_from_runs

    for name in plan.candidates:
        label = f"{name}, " if len(plan.candidates) > 1 else ""
        try:
            advice = recommend_from_runs(plan.out, plan.baseline, name)
        except LatentMoEError as error:
            say(f"{label}how many pairs it takes cannot be said: {error}")
            continue
        for concurrency, advised in advice.items():
            say(f"{label}concurrency {concurrency}: {advised.note}")
