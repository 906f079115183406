"""What a recipe's types cannot say: which of its parts go together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from latent_moe.errors import InputError
from latent_moe.serving.model_dir import model_config

if TYPE_CHECKING:
    from latent_moe.serving.recipe import Arm, Recipe, ServerSpec


def check(recipe: Recipe, where: str) -> None:
    """Raise InputError, with `where`, for the first thing that cannot be run."""
    roles = [arm.role for arm in recipe.arms.values()]
    if roles.count("baseline") != 1 or len(roles) < 2:
        raise InputError(f"{where}: exactly one arm must be the baseline, the others candidates, not {roles}")
    for name in (recipe.name, *recipe.arms):
        if not name.strip(".") or not all(c.isascii() and (c.isalnum() or c in "._-") for c in name):
            raise InputError(f"{where}: {name!r} cannot be a name (letters, digits, . _ -)")
    if (recipe.model.preset is None) == (recipe.model.name is None):
        raise InputError(f"{where}: [model] needs either preset or name")
    if recipe.model.preset is not None:
        try:
            model_config(recipe.model.preset, recipe.model.changes)
        except InputError as error:
            raise InputError(f"{where}: {error}") from error
    if recipe.server.standby and recipe.server.launcher != "module":
        raise InputError(f'{where}: standby needs launcher = "module"')
    _check_work(recipe, where)
    _check_words(recipe, where)


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
