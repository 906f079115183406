"""bench: real vLLM servers of both arms, started in turn, each driven by vLLM's own client, saved run by run."""

import hashlib
import json
import os
import uuid
from collections.abc import Callable
from datetime import datetime
from itertools import zip_longest
from pathlib import Path

import msgspec

from latent_moe.errors import InputError, LatentMoEError
from latent_moe.lab.bench import run_files, schedule
from latent_moe.lab.bench.commands import check_programs, interpreter
from latent_moe.lab.bench.model_dir import model_config, write_model
from latent_moe.lab.bench.progress import Meter, Notify, lines
from latent_moe.lab.bench.recipe import Recipe, load_recipe, with_pairs
from latent_moe.lab.bench.session import BootRun


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
    chosen = with_pairs(recipe if isinstance(recipe, Recipe) else load_recipe(recipe), pairs)
    pythons = {name: interpreter(arm, os.environ) for name, arm in chosen.arms.items()}
    check_programs(chosen, pythons)
    folder = _prepare(chosen, Path(out) if out else default_folder(chosen), resume)
    todo = schedule.remaining(chosen, folder)
    schedule.set_aside(chosen, folder, todo)
    _run_boots(chosen, folder, todo, pythons, notify)
    return folder


def default_folder(recipe: Recipe) -> Path:
    """runs/bench/<time>_<recipe> below the current folder."""
    return Path("runs") / "bench" / f"{datetime.now():%Y%m%d-%H%M%S}_{recipe.name}"


def fingerprint(recipe: Recipe) -> str:
    """Two recipes that measure the same thing have the same; the number of pairs may grow."""
    same = msgspec.structs.replace(recipe, pairs=0)
    return hashlib.sha256(msgspec.json.encode(same, order="deterministic")).hexdigest()[:16]


def _prepare(recipe: Recipe, out: Path, resume: bool) -> Path:
    try:
        _check_folder(recipe, out, resume)
        state = {"recipe": recipe.name, "fingerprint": fingerprint(recipe)}
        schedule.write_whole(_state(out), state)
        if recipe.model.preset:
            config = model_config(recipe.model.preset, recipe.model.changes)
            write_model(out / recipe.model.preset, config)
    except OSError as error:
        raise InputError(f"{out} cannot hold results ({error.strerror or error})") from error
    return out


def _state(out: Path) -> Path:
    return out / "state" / "recipe.json"


def _check_folder(recipe: Recipe, out: Path, resume: bool) -> None:
    state = _state(out)
    if state.is_file():
        if not resume:
            raise InputError(
                f"{out} holds results already: --resume goes on with them, another --out starts anew"
            )
        if _measured_with(state) != fingerprint(recipe):
            raise InputError(f"{out} was measured with another recipe than this {recipe.name}")
    elif resume:
        raise InputError(f"{out}: nothing to resume there")
    elif out.exists() and any(out.iterdir()):
        raise InputError(f"{out} is not empty")


def _measured_with(state: Path) -> str:
    try:
        return json.loads(state.read_text(encoding="utf-8"))["fingerprint"]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{state} does not say with which recipe this was measured ({error!r})") from error


def _run_boots(recipe: Recipe, out: Path, todo: list[schedule.Boot], pythons: dict, notify: Notify) -> None:
    measured = sum(boot.measures for boot in todo) * len(recipe.client.concurrencies)
    meter = Meter(notify, {"boot": len(todo), "run": measured})
    if not todo:
        meter.say(f"everything in {out} is measured already")
    device, versions = run_files.device_name(recipe), {}
    sessions = [
        BootRun(recipe, out, boot, pythons[boot.arm], device, new_identity(boot), meter) for boot in todo
    ]
    try:
        for session, following in zip_longest(sessions, sessions[1:]):
            ahead = following if recipe.server.standby else None
            session.run(when_up=ahead.prepare if ahead else lambda: None)
            versions[f"vllm ({session.boot.arm})"] = session.facts.vllm_version or "unknown"
            run_files.write_manifest(recipe, out, device, versions)
            _recommend(recipe, out, session.boot, meter.say)
    finally:
        for session in sessions:
            session.stop()


def new_identity(boot: schedule.Boot) -> str:
    """A name for one server start that no other has, whichever session it is from."""
    return f"{boot.order}-{uuid.uuid4().hex[:8]}"


def _recommend(recipe: Recipe, out: Path, boot: schedule.Boot, say: Callable[[str], None]) -> None:
    """After whole pairs: how many pairs would show a 3 % effect with the noise seen so far, for each candidate.

    Advice never ends a benchmark: where the runs allow none, that is said and measuring goes on.
    """
    if boot.pair < 2 or not boot.measures or not recipe.client.concurrencies:
        return
    if not schedule.runs_are_whole(recipe, out, boot.pair):
        return
    from latent_moe.lab.results.comparison import recommend_from_runs

    candidates = recipe.with_role("candidate")
    for name in candidates:
        label = f"{name}, " if len(candidates) > 1 else ""
        try:
            advice = recommend_from_runs(out, recipe.role_of("baseline"), name)
        except LatentMoEError as error:
            say(f"{label}how many pairs it takes cannot be said: {error}")
            continue
        for concurrency, found in advice.items():
            say(f"{label}concurrency {concurrency}: {found.note}")


def with_arms(recipe: Recipe, *names: str) -> Recipe:
    """The recipe with only some of its arms; their roles stay."""
    arms = {name: recipe.arms[name] for name in names}
    return msgspec.structs.replace(recipe, arms=arms)
