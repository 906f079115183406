"""Recipes: what `bench` runs, as TOML. Two arms or more, one client, how often; each checked when read."""

import re
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from latent_moe.errors import InputError, unknown
from latent_moe.lab.bench.model_dir import model_config
from latent_moe.tail_variants.registry import ASKABLE
from latent_moe.vllm_plugin.register import TAIL_VARIABLE

DEFAULT_PORT = 8000  # vLLM's own
RECIPES = Path(__file__).parent / "recipes"
# Fields that no result depends on: they may change before a bench is resumed.
_UNMEASURED = re.compile(r"pairs|name|title|notes|.*_timeout_s|.*\.timeout_s|.*\.note")

# Above a million, counts and lengths are slips: a list of so many would be made.
Count = Annotated[int, Meta(ge=0, le=1_000_000)]
AtLeastOne = Annotated[int, Meta(ge=1, le=1_000_000)]
Pairs = Annotated[int, Meta(ge=1, le=10_000)]
# The client seeds numpy with a million times this and more (plan.py), which takes 32 bits.
Seed = Annotated[int, Meta(ge=0, le=4_000)]
# At most a year: neither infinity nor NaN is a time to wait.
Seconds = Annotated[float, Meta(gt=0, le=365 * 86_400)]

# What the client's command gets from the recipe's fields and from bench, by option: where to say it instead.
_SET = {
    "--model": "[model]",
    "--base-url": "[arms] url",
    "--port": "[server] port",
    "--dataset-name": "[client] dataset",
    "--dataset-path": "[client] dataset_path",
    "--random-input-len": "[client] isl",
    "--input-len": "[client] isl",
    "--random-output-len": "[client] osl",
    "--output-len": "[client] osl",
    "--sharegpt-output-len": "[client] osl",
    "--custom-output-len": "[client] osl",
    "--num-prompts": "[client] prompts_per_concurrency",
    "--max-concurrency": "[client] concurrencies",
    "--request-rate": "[client] request_rate",
    "--seed": "seed",
    "--save-result": "always",
    "--append-result": "one file a run",
    "--result-dir": "--out",
    "--result-filename": "one file a run",
    "--profile": "bench --profile",
}


class Model(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Either `preset` (a model of ours, seeded weights, nothing to download) or `name` (as vLLM takes it)."""

    preset: str | None = None
    changes: dict[str, Any] = {}
    name: str | None = None


class ServerSpec(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """`args` and `env` of every arm's server. `port` 0: a free one; else that one, and no --port is passed.

    With `standby` the next server's Python imports what it needs while the arm before is measured, and starts nothing
    until it is its turn: for machines with many cores, where imports are most of a server's start. `container_args` go to
    docker's or podman's `run` for arms with an image, before those of the arm.
    """

    args: list[str] = []
    env: dict[str, str] = {}
    launcher: Literal["module", "console"] = "module"
    port: Annotated[int, Meta(ge=0, le=65_535)] = 0
    startup_timeout_s: Seconds = 900
    standby: bool = False
    runtime: Literal["docker", "podman"] | None = None
    container_args: list[str] = []


class ClientSpec(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """vLLM's own benchmark client. `prompts_per_concurrency` times the concurrency is the number of prompts of a run.

    `warmup_prompts` are sent before each concurrency's run, of the same lengths, and are not measured; None: as many
    as the concurrency. An empty `concurrencies` measures no throughput (an accuracy recipe).

    `dataset` random sends prompts of `isl` tokens; sharegpt and custom take theirs from the local file `dataset_path` (a
    relative one lies beside the recipe) in the client's own forms, ShareGPT's JSON or JSON lines with a "prompt". All ask
    for `osl` tokens. `request_rate` requests a second are sent at most; None: as fast as the concurrency lets.
    `interpreter` is the python whose vLLM drives every arm; None: the arm's own, or this one's for an arm that is no vLLM
    of this machine. vLLM 0.32's client has no multi-turn workload.
    """

    isl: AtLeastOne = 128
    osl: AtLeastOne = 16
    concurrencies: list[AtLeastOne] = []
    prompts_per_concurrency: AtLeastOne = 4
    warmup_prompts: Count | None = None
    dataset: Literal["random", "sharegpt", "custom"] = "random"
    dataset_path: str | None = None
    request_rate: Annotated[float, Meta(gt=0, le=1e6)] | None = None
    interpreter: str | None = None
    args: list[str] = []
    timeout_s: Seconds = 3600


class Arm(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One side: its role, where its server is from, and what it adds to the servers' arguments and environment.

    The server is vLLM under `interpreter` (None: this one; ${NAME} is taken from the environment), or in a container of
    `image`, or runs at `url` already and is neither started nor ended. An arm of engine sglang takes its own `args` and
    `env` alone: those of [server] are vLLM's.
    """

    role: Literal["baseline", "candidate"]
    engine: Literal["vllm", "sglang"] = "vllm"
    interpreter: str | None = None
    image: str | None = None
    url: str | None = None
    container_args: list[str] = []
    env: dict[str, str] = {}
    args: list[str] = []
    note: str = ""

    @property
    def starts_vllm(self) -> bool:
        """Whether this package starts a vLLM server for the arm."""
        return self.engine == "vllm" and self.url is None


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
    """Everything `bench` does. `pairs` pairs of server sessions, the arms' order turned from pair to pair (A B B A ...).

    One arm is the baseline; every other one is a candidate, each compared with the baseline by itself. With
    `discard_first` the first server start of a bench is thrown away: it was the slowest in three of three recordings, and
    always the baseline's. The manifest hands `primary_metric` on to whoever reads the results. In the file
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
    discard_first: bool = True
    primary_metric: Literal[
        "total_tok_per_s", "req_per_s", "output_tok_per_s", "mean_ttft_ms", "mean_tpot_ms", "mean_itl_ms"
    ] = "total_tok_per_s"
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

    def tail_of(self, arm: str) -> str | None:
        """LATENT_MOE_TAIL of the arm."""
        return self.server_env(arm).get(TAIL_VARIABLE)

    def server_env(self, arm: str) -> dict[str, str]:
        """The variables of the arm's server."""
        shared = self.server.env if self.arms[arm].starts_vllm else {}
        return {**shared, **self.arms[arm].env}

    def server_words(self, arm: str) -> list[str]:
        """The server's arguments of the arm, of which vLLM takes the last where an option occurs twice."""
        shared = self.server.args if self.arms[arm].starts_vllm else []
        return [*shared, *self.arms[arm].args]

    def config(self) -> dict[str, Any] | None:
        """config.json of the recipe's own model; None for a model that vLLM is to get."""
        return None if self.model.preset is None else model_config(self.model.preset, self.model.changes)

    def with_pairs(self, pairs: int | None) -> "Recipe":
        """With another number of pairs; None leaves it. Raises InputError for a number that it cannot have."""
        if pairs is None:
            return self
        try:
            msgspec.convert(pairs, Pairs)
        except msgspec.ValidationError as error:
            raise InputError(f"pairs {pairs}: {error}") from error
        return msgspec.structs.replace(self, pairs=pairs)

    def settings(self) -> dict[str, Any]:
        """What the results depend on, by field ("client.isl"): not the number of pairs, texts for people and time limits."""
        flat = dict(_flat("", msgspec.to_builtins(self)))
        return {name: value for name, value in flat.items() if not _UNMEASURED.fullmatch(name)}

    def check(self) -> None:
        """Raise InputError for the first thing that the types cannot say: which parts go together."""
        roles = [arm.role for arm in self.arms.values()]
        if roles.count("baseline") != 1 or len(roles) < 2:
            raise InputError(f"exactly one arm must be the baseline, the others candidates, not {roles}")
        for name in (self.name, *self.arms):
            if not name.strip(".") or not all(c.isascii() and (c.isalnum() or c in "._-") for c in name):
                raise InputError(f"{name!r} cannot be a name (letters, digits, . _ -)")
        if (self.model.preset is None) == (self.model.name is None):
            raise InputError("[model] needs either preset or name, not both")
        self.config()
        for name in self.arms:
            self._check_place(name)
            self._check_tail(name)
            self._check_port(name)
            self._check_lengths(name)
        if self.server.standby and self.server.launcher != "module":
            raise InputError('standby needs launcher = "module"')
        self._check_client()
        self._check_work()
        self._check_words("[server]", self.server)
        for name, arm in self.arms.items():
            self._check_words(f"[arms.{name}]", arm)

    def _check_place(self, name: str) -> None:
        """Where the arm's server is from: one place, and nothing that this place leaves unused."""
        arm = self.arms[name]
        places = [key for key in ("interpreter", "image", "url") if getattr(arm, key) is not None]
        if len(places) > 1:
            raise InputError(f"[arms.{name}] has {places[0]} and {places[1]}: its server is in one place")
        if arm.url is not None and not arm.url.startswith(("http://", "https://")):
            raise InputError(f"[arms.{name}] url must begin with http:// or https://, not {arm.url!r}")
        if arm.url is not None and (unused := [key for key in ("args", "env") if getattr(arm, key)]):
            raise InputError(f"[arms.{name}] {unused[0]} would be unused: the server at its url runs already")
        if arm.container_args and arm.image is None:
            raise InputError(f"[arms.{name}] container_args would be unused: the arm has no image")
        if self.model.preset is not None and not arm.starts_vllm:
            raise InputError(
                f"[arms.{name}] cannot serve {self.model.preset}: a preset is served by vLLM started here"
            )
        if self.server.standby and (arm.image is not None or not arm.starts_vllm):
            raise InputError(f"[arms.{name}] cannot be on standby: only a vLLM of this machine imports ahead")

    def _check_client(self) -> None:
        """No argument of the client's may quietly replace what the recipe's fields say."""
        for word in self.client.args:
            option = word.partition("=")[0].replace("_", "-")
            if len(option) > 3 and (
                field := next((f for o, f in _SET.items() if o.startswith(option)), None)
            ):
                raise InputError(f"[client] args hold {option}, which bench sets itself: {field}")
        if (self.client.dataset == "random") != (self.client.dataset_path is None):
            needs = "takes no" if self.client.dataset == "random" else "needs a"
            raise InputError(f"[client] dataset {self.client.dataset} {needs} dataset_path")

    def _check_tail(self, arm: str) -> None:
        """An arm of our own model that names no tail would quietly run the default one, under whatever name it has."""
        tail = self.tail_of(arm)
        if tail is None and self.model.preset is not None:
            raise InputError(f"[arms.{arm}] env says no {TAIL_VARIABLE}")
        if tail is not None and "$" not in tail and tail not in ASKABLE:
            raise InputError(f"[arms.{arm}] {unknown(TAIL_VARIABLE, tail, ASKABLE)}")

    def _check_port(self, arm: str) -> None:
        port = self.server.port
        if port and self.server.standby:
            raise InputError(f"standby starts two servers at a time, they cannot share [server] port {port}")
        listens = number_after(self.server_words(arm), "--port") or DEFAULT_PORT
        if port not in (0, listens):
            text = f"[server] port {port} is not passed on: add --port to the arguments"
            raise InputError(f"{text}, vLLM listens on {listens} in [arms.{arm}]")

    def _check_lengths(self, arm: str) -> None:
        """A server refuses prompts that are too long one by one, and a run of refusals looks like a fast one."""
        client = self.client
        most = number_after(self.server_words(arm), "--max-model-len")
        if client.concurrencies and most is not None and client.isl + client.osl > most:
            asked = f"isl {client.isl} and osl {client.osl}"
            raise InputError(f"{asked} do not fit --max-model-len {most} of [arms.{arm}]")

    def _check_work(self) -> None:
        asked = self.client.concurrencies
        if len(set(asked)) != len(asked):
            raise InputError("a concurrency occurs twice")
        if not (asked or self.accuracy or self.parity):
            raise InputError("nothing to do: no concurrencies, no parity, no accuracy")

    def _check_words(self, place: str, spec: ServerSpec | Arm) -> None:
        for name, value in spec.env.items():
            if not name or "=" in name or "\0" in name + value:
                raise InputError(f"{place} env {name!r} cannot be an environment variable")
        if any("\0" in word for word in spec.args):
            raise InputError(f"{place} args hold a NUL character")
        if getattr(spec, "interpreter", None) == "":
            raise InputError(f"{place} interpreter is empty")


def _flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The leaves of nested tables, by their dotted names."""
    if isinstance(value, dict) and value:
        for key, below in value.items():
            yield from _flat(f"{name}.{key}" if name else key, below)
    else:
        yield name, value


def number_after(words: Sequence[str], option: str) -> int | None:
    """The number behind an option, as a word of its own or after "="; of several the last, None where there is none."""
    texts = [after for word, after in pairwise(words) if word == option]
    texts += [word.partition("=")[2] for word in words if word.startswith(f"{option}=")]
    return int(texts[-1]) if texts and texts[-1].isdecimal() else None


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
    raise unknown("recipe", recipe, [*recipe_names(), "or the path of a .toml file"])


def load_recipe(recipe: str | Path) -> Recipe:
    """Read a recipe. Raises InputError naming the file and the field that cannot be used."""
    path = find(recipe)
    try:
        loaded = msgspec.convert(_read(path, ()), Recipe)
    except msgspec.ValidationError as error:
        raise InputError(f"{path}: not a recipe ({error})") from error
    try:
        loaded.check()
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    return loaded


def _read(path: Path, extending: tuple[Path, ...]) -> dict[str, Any]:
    """The file's tables over those of the recipe that it extends: a shipped one's name, or a file beside it."""
    if path.resolve() in extending:
        raise InputError(f"{path}: extends itself")
    try:
        own = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: not a recipe ({error})") from error
    if isinstance(client := own.get("client"), dict) and isinstance(client.get("dataset_path"), str):
        client["dataset_path"] = str((path.parent / client["dataset_path"]).absolute())
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
