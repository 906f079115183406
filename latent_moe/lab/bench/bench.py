"""bench: real vLLM servers of all arms, started in turn, each driven by vLLM's own client, saved run by run."""

import json
import os
import shutil
import uuid
from collections.abc import Callable
from datetime import datetime
from itertools import zip_longest
from pathlib import Path

from latent_moe.errors import InputError, LatentMoEError
from latent_moe.files import write_json
from latent_moe.lab.bench import run_files
from latent_moe.lab.bench.model_dir import write_model
from latent_moe.lab.bench.plan import Plan, SessionEntry, resolve
from latent_moe.lab.bench.recipe import Recipe, load_recipe
from latent_moe.lab.bench.server import reserved_ports
from latent_moe.lab.bench.session import Meter, Notify, ServerSession, lines


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
    _prepare(plan, resume)
    todo = plan.remaining()
    todo.set_aside()
    _run_sessions(plan, todo, notify)


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
            program = command.expanded(os.environ).words[0]
            if shutil.which(program) is None:
                raise InputError(f"{program}, which {purpose} needs, is not on the PATH (or not executable)")


def _prepare(plan: Plan, resume: bool) -> None:
    try:
        _check_folder(plan, resume)
        write_json(_state(plan.out), {"recipe": plan.name, "fingerprint": plan.fingerprint})
        if plan.model_config:
            write_model(plan.out / plan.sessions[0].model, dict(plan.model_config))
    except OSError as error:
        raise InputError(f"{plan.out} cannot hold results ({error.strerror or error})") from error


def _state(out: Path) -> Path:
    return out / "state" / "recipe.json"


def _check_folder(plan: Plan, resume: bool) -> None:
    out, state = plan.out, _state(plan.out)
    if state.is_file():
        if not resume:
            raise InputError(
                f"{out} holds results already: --resume goes on with them, another --out starts anew"
            )
        if _measured_with(state) != plan.fingerprint:
            raise InputError(f"{out} was measured with another recipe than this {plan.name}")
    elif resume:
        raise InputError(f"{out}: nothing to resume there")
    elif out.exists() and any(out.iterdir()):
        raise InputError(f"{out} is not empty")


def _measured_with(state: Path) -> str:
    try:
        return json.loads(state.read_text(encoding="utf-8"))["fingerprint"]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{state} does not say with which recipe this was measured ({error!r})") from error


def _run_sessions(plan: Plan, todo: Plan, notify: Notify) -> None:
    """The sessions of `todo`, which is what is left of `plan`."""
    meter = meter_of(todo, notify)
    if not todo.sessions:
        meter.say(f"everything in {plan.out} is measured already")
    versions: dict[str, str] = {}
    sessions = [ServerSession(todo, entry, new_identity(entry), meter) for entry in todo.sessions]
    try:
        for session, following in zip_longest(sessions, sessions[1:]):
            ahead = following if following and following.entry.go else None
            session.run(when_up=ahead.prepare if ahead else lambda: None)
            versions[f"vllm ({session.entry.arm})"] = session.facts.vllm_version or "unknown"
            run_files.write_manifest(plan, versions)
            recommend(plan, session.entry, meter.say)
    finally:
        for session in sessions:
            session.stop()


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
