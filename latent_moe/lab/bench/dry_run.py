"""Every command of a recipe, as a person would type it; starts nothing, needs nothing installed."""

import os
from pathlib import Path
from typing import Any

from latent_moe.errors import InputError
from latent_moe.lab.bench import commands as build
from latent_moe.lab.bench import schedule
from latent_moe.lab.bench.options import DEFAULT_PORT
from latent_moe.lab.bench.recipe import Recipe

OUT = Path("OUT")
_ANY_PORT = 0


def commands(recipe: Recipe) -> list[dict[str, Any]]:
    """One entry per distinct command: kind (server, client, accuracy), arm, the command, what bench adds to it."""
    listed = []
    for arm in recipe.arms:
        python, missing = _interpreter(recipe, arm)
        listed.append(_server(recipe, arm, python, missing))
        listed += [_client(recipe, arm, python, concurrency) for concurrency in recipe.client.concurrencies]
        if recipe.accuracy:
            url = f"http://127.0.0.1:{recipe.server.port or DEFAULT_PORT}"
            command = build.accuracy_command(recipe, url, OUT / "accuracy" / arm)
            listed.append(_entry("accuracy", arm, command, note=recipe.accuracy.note))
    return listed


def _interpreter(recipe: Recipe, arm: str) -> tuple[str | None, str]:
    """The arm's python, or None with the reason why it cannot be had here: a dry run shows the command all the same."""
    try:
        return build.interpreter(recipe.arms[arm], os.environ), recipe.arms[arm].note
    except InputError as error:
        return None, str(error)


def _server(recipe: Recipe, arm: str, python: str | None, note: str) -> dict[str, Any]:
    model = recipe.model.name or recipe.model.preset or ""
    # What ${NAME} stands for is not looked up: a dry run may be shown to anybody.
    return _entry("server", arm, build.server_command(recipe, arm, model, _ANY_PORT, python, {}), note=note)


def _client(recipe: Recipe, arm: str, python: str | None, concurrency: int) -> dict[str, Any]:
    model = recipe.model.name or recipe.model.preset or ""
    command = build.client_command(recipe, model, concurrency, python)
    port = None if recipe.server.port == DEFAULT_PORT else recipe.server.port
    seed = schedule.seed(recipe, 1, concurrency)
    added = build.saving(OUT / "logs", f"c{concurrency}.json", seed, port)
    return _entry("client", arm, build.Command(command.words, added=added), concurrency=concurrency)


def _entry(kind: str, arm: str, command: build.Command, **more: Any) -> dict[str, Any]:
    added = " ".join(command.added).replace("--port 0", "--port FREE")
    return {"kind": kind, "arm": arm, "command": command.shown(), "added": added, **more}


def text(recipe: Recipe, listed: list[dict[str, Any]]) -> str:
    """The list for people: order of boots first, then each command below a comment."""
    order = " ".join(boot.arm for boot in schedule.boots(recipe))
    lines = [f"# {recipe.title}", f"# boots in order: {order}", f"# {recipe.notes}" if recipe.notes else ""]
    for item in listed:
        at = f", concurrency {item['concurrency']}" if "concurrency" in item else ""
        note = f" ({item['note']})" if item.get("note") else ""
        lines += ["", f"# {item['kind']} of {item['arm']}{at}{note}", item["command"]]
        if item["added"]:
            lines.append(f"#   bench adds: {item['added']}")
    return "\n".join(line for line in lines if line is not None)
