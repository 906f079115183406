"""The commands of a recipe: what starts a server, what drives it, what measures its accuracy."""

import json
import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from latent_moe.errors import InputError
from latent_moe.lab.bench.recipe import Arm, Recipe
from latent_moe.lab.secrets import HIDDEN, expand, hide, is_secret_name, references, secret_values

SERVER_MODULE = "vllm.entrypoints.openai.api_server"
CLIENT_MODULE = "latent_moe.lab.bench.vllm_client"
STANDBY_MODULE = "latent_moe.lab.bench.vllm_server"
_QUOTED = shlex.quote(HIDDEN)


@dataclass(frozen=True)
class Command:
    """A command line with the environment it adds; `added` are arguments of ours behind the recipe's own."""

    words: list[str]
    env: Mapping[str, str] = field(default_factory=dict)
    added: list[str] = field(default_factory=list)

    @property
    def all_words(self) -> list[str]:
        """The whole command line."""
        return [*self.words, *self.added]

    def shown(self, with_added: bool = False) -> str:
        """One line for people, as they would type it, secrets hidden."""
        words = self.all_words if with_added else self.words
        secrets = secret_values(self.env, words)
        env = [
            f"{name}={HIDDEN if is_secret_name(name) else shlex.quote(hide(value, secrets))}"
            for name, value in self.env.items()
        ]
        return " ".join([*env, *(shlex.quote(hide(word, secrets)) for word in words)]).replace(
            _QUOTED, HIDDEN
        )


def interpreter(arm: Arm, environment: Mapping[str, str]) -> str | None:
    """The arm's python, None for the one that runs this. Raises InputError for a variable that is not set."""
    if arm.interpreter is None:
        return None
    unset = [name for name in references(arm.interpreter) if name not in environment]
    if unset:
        raise InputError(f"set {unset[0]} to the python of this arm's vLLM ({arm.note or arm.interpreter})")
    path = expand(arm.interpreter, environment)
    if not Path(path).exists():
        raise InputError(f"the arm's interpreter {path} does not exist")
    return path


def launcher(recipe: Recipe, python: str | None, module: str, verb: list[str]) -> list[str]:
    """The first words: `vllm VERB` of that python's environment, or `python -m module`."""
    if recipe.server.launcher == "module":
        return [python or sys.executable, "-m", module]
    return [str(Path(python).parent / "vllm") if python else "vllm", *verb]


def check_programs(recipe: Recipe, pythons: Mapping[str, str | None]) -> None:
    """Raise InputError for a program that the recipe names and this machine lacks: known now, not after hours."""
    starts = {name: launcher(recipe, python, SERVER_MODULE, ["serve"])[0] for name, python in pythons.items()}
    wanted = {f"the server of {name}": word for name, word in starts.items()}
    if recipe.accuracy:
        wanted["the accuracy step"] = recipe.accuracy.command[0]
    for purpose, program in wanted.items():
        if shutil.which(program) is None:
            raise InputError(f"{program}, which {purpose} needs, is not on the PATH (or not executable)")


def server_command(
    recipe: Recipe, arm: str, model: str, port: int, python: str | None, environment: Mapping[str, str]
) -> Command:
    """How this arm's server starts. ${NAME} in the recipe's variables and arguments is taken from
    `environment`."""
    spec, side = recipe.server, recipe.arms[arm]
    start = launcher(recipe, python, SERVER_MODULE, ["serve"])
    named = [model] if spec.launcher == "console" else ["--model", model]
    added = [] if spec.port else ["--host", "127.0.0.1", "--port", str(port)]
    env = {name: expand(value, environment) for name, value in {**spec.env, **side.env}.items()}
    words = [expand(word, environment) for word in (*spec.args, *side.args)]
    return Command([*start, *named, *words], env, added)


def on_standby(words: list[str], go: Path) -> list[str]:
    """The same server behind a process that imports now and starts when the file `go` appears."""
    return [words[0], "-m", STANDBY_MODULE, str(go), *words[3:]]


def client_command(
    recipe: Recipe,
    model: str,
    concurrency: int,
    python: str | None = None,
    prompts: int | None = None,
    environment: Mapping[str, str] | None = None,
) -> Command:
    """vLLM's benchmark client at one concurrency, before anything of ours is added; ${NAME} as for the server."""
    client = recipe.client
    start = launcher(recipe, python, CLIENT_MODULE, ["bench", "serve"])
    count = client.prompts_per_concurrency * concurrency if prompts is None else prompts
    words = ["--model", model, *(expand(word, environment or {}) for word in client.args)]
    words += ["--dataset-name", "random"]
    words += ["--random-input-len", str(client.isl), "--random-output-len", str(client.osl), "--ignore-eos"]
    words += ["--num-prompts", str(count), "--max-concurrency", str(concurrency)]
    return Command([*start, *words])


def saving(folder: Path, filename: str, seed: int, port: int | None) -> list[str]:
    """What `bench` adds to the client: where the result goes, the prompts' seed, the port unless it is the default."""
    where = ["--port", str(port)] if port else []
    return [
        *where,
        "--seed",
        str(seed),
        "--save-result",
        "--result-dir",
        str(folder),
        "--result-filename",
        filename,
    ]


def accuracy_command(
    recipe: Recipe, url: str, out: Path | None, environment: Mapping[str, str] | None = None
) -> Command:
    """lm_eval against one arm's server; `{url}` in the recipe's words is the server's address, ${NAME} as above."""
    assert recipe.accuracy is not None
    words = [expand(word, environment or {}).replace("{url}", url) for word in recipe.accuracy.command]
    return Command(words, added=["--output_path", str(out)] if out else [])


def version_in(body: str | None) -> str | None:
    """The version in the answer of GET /version."""
    try:
        return json.loads(body)["version"] if body else None
    except (ValueError, KeyError, TypeError):
        return None


def environment() -> Mapping[str, str]:
    """Where ${NAME} of a recipe is looked up."""
    return os.environ
