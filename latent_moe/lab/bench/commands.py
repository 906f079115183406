"""The commands of a recipe's arms, as a person would type them: what starts a server, drives it, measures its accuracy."""

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from latent_moe.errors import InputError
from latent_moe.lab.bench.recipe import DEFAULT_PORT, Arm, Recipe
from latent_moe.lab.bench.server import MODULE as SERVER_MODULE
from latent_moe.lab.secrets import HIDDEN, expand, hide, is_secret_name, references, secret_values

CLIENT_MODULE = "latent_moe.lab.bench.client"
STANDBY_MODULE = "latent_moe.lab.bench.server"
_QUOTED = shlex.quote(HIDDEN)


@dataclass(frozen=True)
class Command:
    """A command line with the environment it adds. `words` are the recipe's, `added` what `bench` puts behind them.

    ${NAME} stands as the recipe has it until `expanded`: a plan may be shown to anybody.
    """

    words: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    added: Sequence[str] = ()

    @property
    def all_words(self) -> list[str]:
        """The whole command line."""
        return [*self.words, *self.added]

    def expanded(self, environment: Mapping[str, str]) -> "Command":
        """The same with every ${NAME} taken from `environment`."""
        env = {name: expand(value, environment) for name, value in self.env.items()}
        return replace(self, words=[expand(word, environment) for word in self.words], env=env)

    def shown(self, with_added: bool = False) -> str:
        """One line for people, as they would type it, secrets hidden."""
        words = self.all_words if with_added else self.words
        secrets = secret_values(self.env, words)
        env = [
            f"{name}={HIDDEN if is_secret_name(name) else shlex.quote(hide(value, secrets))}"
            for name, value in self.env.items()
        ]
        line = " ".join([*env, *(shlex.quote(hide(word, secrets)) for word in words)])
        return line.replace(_QUOTED, HIDDEN)


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


@dataclass(frozen=True)
class ArmCommands:
    """Builds one arm's commands; `python` is its interpreter, None for the one that runs this."""

    recipe: Recipe
    arm: str
    python: str | None

    @property
    def model(self) -> str:
        """The model as the server and the client are given it."""
        return self.recipe.model.preset or self.recipe.model.name or ""

    def _start(self, module: str, verb: list[str]) -> list[str]:
        """The first words: `vllm VERB` of the arm's environment, or `python -m module`."""
        if self.recipe.server.launcher == "module":
            return [self.python or sys.executable, "-m", module]
        return [str(Path(self.python).parent / "vllm") if self.python else "vllm", *verb]

    def server(self, port: int) -> Command:
        """How the arm's server starts."""
        spec = self.recipe.server
        named = [self.model] if spec.launcher == "console" else ["--model", self.model]
        words = [*self._start(SERVER_MODULE, ["serve"]), *named, *self.recipe.server_words(self.arm)]
        added = [] if spec.port else ["--host", "127.0.0.1", "--port", str(port)]
        return Command(words, {**spec.env, **self.recipe.arms[self.arm].env}, added)

    def client(self, concurrency: int, prompts: int, port: int, seed: int, result: Path) -> Command:
        """vLLM's benchmark client at one concurrency; where its result goes, the prompts' seed and the port unless it is
        the default one are added."""
        client = self.recipe.client
        words = [*self._start(CLIENT_MODULE, ["bench", "serve"]), "--model", self.model, *client.args]
        words += ["--dataset-name", "random"]
        words += ["--random-input-len", str(client.isl), "--random-output-len", str(client.osl)]
        words += ["--ignore-eos", "--num-prompts", str(prompts), "--max-concurrency", str(concurrency)]
        added = [] if port == DEFAULT_PORT else ["--port", str(port)]
        added += ["--seed", str(seed), "--save-result"]
        return Command(
            words, {}, [*added, "--result-dir", str(result.parent), "--result-filename", result.name]
        )

    def accuracy(self, url: str, out: Path) -> Command:
        """lm_eval against the arm's server; `{url}` in the recipe's words is the server's address."""
        assert self.recipe.accuracy is not None
        words = [word.replace("{url}", url) for word in self.recipe.accuracy.command]
        return Command(words, {}, ["--output_path", str(out)])


def on_standby(words: list[str], go: Path) -> list[str]:
    """The same server behind a process that imports now and starts when the file `go` appears."""
    return [words[0], "-m", STANDBY_MODULE, str(go), *words[3:]]


def version_in(body: str | None) -> str | None:
    """The version in the answer of GET /version."""
    try:
        return json.loads(body)["version"] if body else None
    except (ValueError, KeyError, TypeError):
        return None
