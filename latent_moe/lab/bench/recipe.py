"""Recipes: what `bench` runs, as TOML. Two arms or more, one client, how often; each checked when read."""

import tomllib
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from latent_moe.errors import InputError
from latent_moe.lab.bench.recipe_checks import check

RECIPES = Path(__file__).parent / "recipes"

# Above a million, counts and lengths are slips: a list of so many would be made.
Count = Annotated[int, Meta(ge=0, le=1_000_000)]
AtLeastOne = Annotated[int, Meta(ge=1, le=1_000_000)]
Pairs = Annotated[int, Meta(ge=1, le=10_000)]
# The client seeds numpy with `plan.seed`, which takes 32 bits.
Seed = Annotated[int, Meta(ge=0, le=4_000)]
# At most a year: neither infinity nor NaN is a time to wait.
Seconds = Annotated[float, Meta(gt=0, le=365 * 86_400)]


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
    port: Annotated[int, Meta(ge=0, le=65_535)] = 0
    startup_timeout_s: Seconds = 900
    standby: bool = False


class ClientSpec(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """vLLM's own benchmark client. `prompts_per_concurrency` times the concurrency is the number of prompts of a run.

    `warmup_prompts` are sent before each concurrency's run, of the same lengths, and are not measured; None: as many
    as the concurrency. An empty `concurrencies` measures no throughput (an accuracy recipe).
    """

    isl: AtLeastOne = 128
    osl: AtLeastOne = 16
    concurrencies: list[AtLeastOne] = []
    prompts_per_concurrency: AtLeastOne = 4
    warmup_prompts: Count | None = None
    args: list[str] = []
    timeout_s: Seconds = 3600


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
    count: AtLeastOne = 8
    length: AtLeastOne = 64
    max_tokens: AtLeastOne = 32


class AccuracySpec(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """An lm_eval run against each arm's server; `command` is its program and arguments."""

    command: Annotated[list[str], Meta(min_length=1)]
    note: str = ""
    timeout_s: Seconds = 14400


class Recipe(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Everything `bench` does. `pairs` pairs of boots, the arms' order turned from pair to pair (A B B A ...).

    One arm is the baseline; every other one is a candidate, each compared with the baseline by itself. In the file
    `extends` names another recipe, whose tables this one's keys go over; arms replace that recipe's arms.
    """

    name: str
    title: str
    model: Model
    arms: dict[str, Arm]
    server: ServerSpec = ServerSpec()
    client: ClientSpec = ClientSpec()
    pairs: Pairs = 3
    seed: Seed = 1
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
    if str(recipe) in recipe_names():
        return RECIPES / f"{recipe}.toml"
    with suppress(OSError, ValueError):
        if Path(recipe).is_file():
            return Path(recipe)
    raise InputError(
        f"no recipe {str(recipe)!r} (shipped: {', '.join(recipe_names())}; or the path of a .toml file)"
    )


def load_recipe(recipe: str | Path) -> Recipe:
    """Read a recipe. Raises InputError naming the file and the field that cannot be used."""
    path = find(recipe)
    try:
        found = msgspec.convert(_read(path, ()), Recipe)
    except msgspec.ValidationError as error:
        raise InputError(f"{path}: not a recipe ({error})") from error
    check(found, str(path))
    return found


def with_pairs(recipe: Recipe, pairs: int | None) -> Recipe:
    """The recipe with another number of pairs; None leaves it. Raises InputError for a number that it cannot have."""
    if pairs is None:
        return recipe
    try:
        msgspec.convert(pairs, Pairs)
    except msgspec.ValidationError as error:
        raise InputError(f"pairs {pairs}: {error}") from error
    return msgspec.structs.replace(recipe, pairs=pairs)


def _read(path: Path, extending: tuple[Path, ...]) -> dict[str, Any]:
    """The file's tables over those of the recipe that it extends: a shipped one's name, or a file beside it."""
    if path.resolve() in extending:
        raise InputError(f"{path}: extends itself")
    try:
        own = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: not a recipe ({error})") from error
    base = own.pop("extends", None)
    if base is None:
        return own
    if unsaid := [key for key in ("name", "title") if key not in own]:
        raise InputError(f"{path}: a recipe that extends another has a {unsaid[0]} of its own")
    if not isinstance(base, str):
        raise InputError(f"{path}: extends must be a recipe's name or a file, not {base!r}")
    try:
        below = _read(
            find(base if base in recipe_names() else path.parent / base), (*extending, path.resolve())
        )
    except InputError as error:
        raise InputError(f"{path}: extends {base[:80]!r}: {error}") from error
    return {**below, **{name: _over(below.get(name), value, name) for name, value in own.items()}}


def _over(below: Any, own: Any, name: str) -> Any:
    """A table's keys over those below it. Other arms are another comparison: they replace what was there."""
    if name == "arms" or not (isinstance(below, dict) and isinstance(own, dict)):
        return own
    return {**below, **{key: _over(below.get(key), value, key) for key, value in own.items()}}
