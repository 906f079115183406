"""What a recipe's types cannot say: which of its parts go together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from latent_moe.errors import InputError
from latent_moe.lab.bench.model_dir import model_config
from latent_moe.lab.bench.options import DEFAULT_PORT, number_after, tail_of
from latent_moe.lab.cost.tail import AUTO, TAIL_NAMES
from latent_moe.vllm_plugin.register import TAIL_VARIABLE

if TYPE_CHECKING:
    from latent_moe.lab.bench.recipe import Arm, Recipe, ServerSpec


def check(recipe: Recipe, where: str) -> None:
    """Raise InputError, with `where`, for the first thing that cannot be run."""
    roles = [arm.role for arm in recipe.arms.values()]
    if roles.count("baseline") != 1 or len(roles) < 2:
        raise InputError(f"{where}: exactly one arm must be the baseline, the others candidates, not {roles}")
    for name in (recipe.name, *recipe.arms):
        if not name.strip(".") or not all(c.isascii() and (c.isalnum() or c in "._-") for c in name):
            raise InputError(f"{where}: {name!r} cannot be a name (letters, digits, . _ -)")
    if (recipe.model.preset is None) == (recipe.model.name is None):
        raise InputError(f"{where}: [model] needs either preset or name, not both")
    if recipe.model.preset is not None:
        try:
            model_config(recipe.model.preset, recipe.model.changes)
        except InputError as error:
            raise InputError(f"{where}: {error}") from error
    _check_tails(recipe, where)
    _check_port(recipe, where)
    _check_lengths(recipe, where)
    if recipe.server.standby and recipe.server.launcher != "module":
        raise InputError(f'{where}: standby needs launcher = "module"')
    _check_work(recipe, where)
    _check_words(recipe, where)


def _check_tails(recipe: Recipe, where: str) -> None:
    """An arm of our own model that names no tail would quietly run the default one, under whatever name it has."""
    for name in recipe.arms:
        tail = tail_of(recipe, name)
        if tail is None and recipe.model.preset is not None:
            raise InputError(f"{where}: [arms.{name}] env says no {TAIL_VARIABLE}")
        if tail is not None and "$" not in tail and tail not in (*TAIL_NAMES, AUTO):
            raise InputError(
                f"{where}: [arms.{name}] {TAIL_VARIABLE}={tail} is none of {', '.join((*TAIL_NAMES, AUTO))}"
            )


def _check_port(recipe: Recipe, where: str) -> None:
    port = recipe.server.port
    if port and recipe.server.standby:
        raise InputError(
            f"{where}: standby starts two servers at a time, they cannot share [server] port {port}"
        )
    for name, arm in recipe.arms.items():
        listens = number_after([*recipe.server.args, *arm.args], "--port") or DEFAULT_PORT
        if port not in (0, listens):
            text = f"[server] port {port} is not passed on: add --port to the arguments"
            raise InputError(f"{where}: {text}, vLLM listens on {listens} in [arms.{name}]")


def _check_lengths(recipe: Recipe, where: str) -> None:
    """A server refuses prompts that are too long one by one, and a run of refusals looks like a fast one."""
    client = recipe.client
    for name, arm in recipe.arms.items():
        most = number_after([*recipe.server.args, *arm.args], "--max-model-len")
        if client.concurrencies and most is not None and client.isl + client.osl > most:
            asked = f"isl {client.isl} and osl {client.osl}"
            raise InputError(f"{where}: {asked} do not fit --max-model-len {most} of [arms.{name}]")


def _check_work(recipe: Recipe, where: str) -> None:
    asked = recipe.client.concurrencies
    if len(set(asked)) != len(asked):
        raise InputError(f"{where}: a concurrency occurs twice")
    if not (asked or recipe.accuracy or recipe.parity):
        raise InputError(f"{where}: nothing to do: no concurrencies, no parity, no accuracy")


def _check_words(recipe: Recipe, where: str) -> None:
    specs: dict[str, ServerSpec | Arm] = {
        "[server]": recipe.server,
        **{f"[arms.{n}]": arm for n, arm in recipe.arms.items()},
    }
    for place, spec in specs.items():
        for name, value in spec.env.items():
            if not name or "=" in name or "\0" in name + value:
                raise InputError(f"{where}: {place} env {name!r} cannot be an environment variable")
        if any("\0" in word for word in spec.args):
            raise InputError(f"{where}: {place} args hold a NUL character")
        if getattr(spec, "interpreter", None) == "":
            raise InputError(f"{where}: {place} interpreter is empty")
