"""Recipes: what `bench` runs, as TOML. Two arms or more, one client, how often; each checked when read."""

import math
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import msgspec

from latent_moe.errors import InputError
from latent_moe.serving.model_dir import model_config

RECIPES = Path(__file__).parent / "recipes"


class Model(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Either `preset` (a model of ours, seeded weights, nothing to download) or `name` (as vLLM takes it)."""

    preset: str | None = None
    changes: dict[str, Any] = {}
    name: str | None = None


class ServerSpec(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """`args` and `env` of every arm's server. `port` 0: a free one; else that one, and no --port is passed.

    With `standby` the next server's Python imports what it needs while the arm before is measured, and starts nothing
    until it is its turn: for machines with many cores, where imports are most of a boot.
    """

    args: list[str] = []
    env: dict[str, str] = {}
    launcher: Literal["module", "console"] = "module"
    port: int = 0
    startup_timeout_s: float = 900
    standby: bool = False


class ClientSpec(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """vLLM's own benchmark client. `prompts_per_concurrency` times the concurrency is the number of prompts of a run.

    `warmup_prompts` are sent before each concurrency's run, of the same lengths, and are not measured; None: as many
    as the concurrency. An empty `concurrencies` measures no throughput (an accuracy recipe).
    """

    isl: int = 128
    osl: int = 16
    concurrencies: list[int] = []
    prompts_per_concurrency: int = 4
    warmup_prompts: int | None = None
    args: list[str] = []
    timeout_s: float = 3600


class Arm(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One side: its role, its interpreter (None: this one; ${NAME} is taken from the environment) and what it adds."""

    role: Literal["baseline", "candidate"]
    interpreter: str | None = None
    env: dict[str, str] = {}
    args: list[str] = []
    note: str = ""


class ParitySpec(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Greedy answers to compare: `prompts` texts, or `count` prompts of `length` token ids where none are given."""

    prompts: list[str] = []
    count: int = 8
    length: int = 64
    max_tokens: int = 32


class AccuracySpec(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """An lm_eval run against each arm's server; `command` is its program and arguments."""

    command: list[str]
    note: str = ""
    timeout_s: float = 14400


class Recipe(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Everything `bench` does. `pairs` pairs of boots, the arms' order turned from pair to pair (A B B A ...).

    One arm is the baseline; every other one is a candidate, each compared with the baseline by itself.
    """

    name: str
    title: str
    model: Model
    arms: dict[str, Arm]
    server: ServerSpec = ServerSpec()
    client: ClientSpec = ClientSpec()
    pairs: int = 3
    seed: int = 1
    device: str | None = None
    parity: ParitySpec | None = None
    accuracy: AccuracySpec | None = None
    notes: str = ""

    def with_role(self, role: str) -> list[str]:
        """The names of the arms with this role."""
        return [name for name, arm in self.arms.items() if arm.role == role]

    def role_of(self, role: str) -> str:
        """The name of the (first) arm with this role."""
        return self.with_role(role)[0]


def recipe_names() -> list[str]:
    """The recipes that come with the package."""
    return sorted(path.stem for path in RECIPES.glob("*.toml"))


def find(recipe: str | Path) -> Path:
    """The file of a shipped recipe by name, or the path itself. Raises InputError naming what there is."""
    for path in (RECIPES / f"{recipe}.toml", Path(recipe)):
        with suppress(PermissionError):
            if path.is_file():
                return path
    raise InputError(
        f"no recipe {str(recipe)!r} (shipped: {', '.join(recipe_names())}; or the path of a .toml file)"
    )


def load_recipe(recipe: str | Path) -> Recipe:
    """Read a recipe. Raises InputError naming the file and the field that cannot be used."""
    path = find(recipe)
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
        found = msgspec.convert(raw, Recipe)
    except (OSError, ValueError, RecursionError, msgspec.ValidationError) as error:
        raise InputError(f"{path}: not a recipe ({error})") from error
    _check(found, str(path))
    return found


def _check(recipe: Recipe, where: str) -> None:
    roles = [arm.role for arm in recipe.arms.values()]
    if roles.count("baseline") != 1 or len(roles) < 2:
        raise InputError(f"{where}: exactly one arm must be the baseline, the others candidates, not {roles}")
    for name in (recipe.name, *recipe.arms):
        if not name or not all(c.isascii() and (c.isalnum() or c in "._-") for c in name):
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
    _check_numbers(recipe, where)


def _check_numbers(recipe: Recipe, where: str) -> None:
    client = recipe.client
    numbers = {"pairs": recipe.pairs, "isl": client.isl, "osl": client.osl}
    numbers |= {"prompts_per_concurrency": client.prompts_per_concurrency}
    numbers |= {f"concurrencies[{index}]": value for index, value in enumerate(client.concurrencies)}
    for name, value in numbers.items():
        if value < 1:
            raise InputError(f"{where}: {name} must be at least 1, not {value}")
    _check_limits(recipe, where)
    if len(set(client.concurrencies)) != len(client.concurrencies):
        raise InputError(f"{where}: a concurrency occurs twice")
    if not (client.concurrencies or recipe.accuracy or recipe.parity):
        raise InputError(f"{where}: nothing to do: no concurrencies, no parity, no accuracy")


def _check_limits(recipe: Recipe, where: str) -> None:
    """Times above 0, counts of at least 0, and words that a process can be started with."""
    seconds = {
        "[server] startup_timeout_s": recipe.server.startup_timeout_s,
        "[client] timeout_s": recipe.client.timeout_s,
    }
    if recipe.accuracy is not None:
        seconds["[accuracy] timeout_s"] = recipe.accuracy.timeout_s
        if not recipe.accuracy.command:
            raise InputError(f"{where}: [accuracy] command is empty")
    for name, value in seconds.items():
        if not (math.isfinite(value) and value > 0):
            raise InputError(f"{where}: {name} must be a number of seconds above 0, not {value}")
    counts = {"[client] warmup_prompts": recipe.client.warmup_prompts or 0}
    if recipe.parity is not None:
        counts |= {
            f"[parity] {name}": getattr(recipe.parity, name) for name in ("count", "length", "max_tokens")
        }
    for name, value in counts.items():
        if value < 0:
            raise InputError(f"{where}: {name} must not be negative, not {value}")
    if not 0 <= recipe.server.port < 65536:
        raise InputError(f"{where}: [server] port {recipe.server.port} is none: 0 (any free one) to 65535")
    _check_words(recipe, where)


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
