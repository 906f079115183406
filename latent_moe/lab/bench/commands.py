"""The commands of a recipe's arms, as a person would type them: what starts a server, drives it, measures its accuracy."""

import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path

from latent_moe.errors import InputError
from latent_moe.lab.bench.recipe import DEFAULT_PORT, Recipe
from latent_moe.lab.secrets import HIDDEN, expand, hide, is_secret_name, references, secret_values

CLIENT_MODULE = "latent_moe.lab.bench.client"
STANDBY_MODULE = "latent_moe.lab.bench.server"
# vLLM's server entry, and the one before 0.32, which deprecates it.
SERVER_MODULE = "vllm.entrypoints.launchers.api_server.entry"
OLD_SERVER_MODULE = "vllm.entrypoints.openai.api_server"
SGLANG_MODULE = "sglang.launch_server"
_QUOTED = shlex.quote(HIDDEN)
_ROCM = ["--device", "/dev/kfd", "--device", "/dev/dri", "--group-add", "video"]
# How a container gets the machine's GPUs.
_DEVICES = {
    ("cpu", "docker"): [],
    ("cpu", "podman"): [],
    ("rocm", "docker"): _ROCM,
    ("rocm", "podman"): _ROCM,
    ("cuda", "docker"): ["--gpus", "all"],
    ("cuda", "podman"): ["--device", "nvidia.com/gpu=all"],
}


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


def interpreter(path: str | None, environment: Mapping[str, str], note: str = "") -> str | None:
    """A python that a recipe names, None for the one that runs this. Raises InputError for a variable that is not set."""
    if path is None:
        return None
    unset = [name for name in references(path) if name not in environment]
    if unset:
        raise InputError(f"set {unset[0]} to the python of this arm's vLLM ({note or path})")
    expanded = expand(path, environment)
    if not Path(expanded).exists():
        raise InputError(f"the arm's interpreter {expanded} does not exist")
    return expanded


@dataclass(frozen=True)
class ArmCommands:
    """Builds one arm's commands. `python` and `client_python` are the interpreters of its server and of the client, None
    for the one that runs this; `out` is the folder that a container sees, `kind` the machine's (cpu, cuda, rocm)."""

    recipe: Recipe
    arm: str
    python: str | None
    client_python: str | None
    out: Path
    kind: str

    @property
    def model(self) -> str:
        """The model as the server and the client are given it."""
        return self.recipe.model.preset or self.recipe.model.name or ""

    @property
    def runtime(self) -> str:
        """docker, or podman where only that is there and the recipe names none."""
        there = [name for name in ("docker", "podman") if shutil.which(name)]
        return self.recipe.server.runtime or (there[0] if there else "docker")

    def server(self, port: int, container: str) -> Command:
        """How the arm's server starts; `container` is the name of its container where it is in one."""
        spec, side = self.recipe.server, self.recipe.arms[self.arm]
        added = [] if spec.port else ["--host", "127.0.0.1", "--port", str(port)]
        words = [*self._engine(), *self.recipe.server_words(self.arm)]
        env = self.recipe.server_env(self.arm)
        if side.image is None:
            return Command(words, env, added)
        start = [self.runtime, "run", "--rm", "--name", container, "--network", "host", "--ipc", "host"]
        start += _DEVICES.get((self.kind, self.runtime), [])
        # The values come from the environment of this command: they stand in no list of processes.
        start += [word for name in env for word in ("--env", name)]
        if self.recipe.model.preset:
            folder = self.out.absolute()
            start += ["--volume", f"{folder}:{folder}", "--workdir", str(folder)]
        start += [*spec.container_args, *side.container_args, "--entrypoint", words[0], side.image]
        return Command([*start, *words[1:]], env, added)

    def _engine(self) -> list[str]:
        """The first words of the server and its model."""
        side, module = self.recipe.arms[self.arm], self.recipe.server.launcher == "module"
        if side.engine == "sglang":
            python = "python3" if side.image else self.python or sys.executable
            return [python, "-m", SGLANG_MODULE, "--model-path", self.model]
        if side.image is None and module:
            return [self.python or sys.executable, "-m", server_module(self.python), "--model", self.model]
        return [*_console(None if side.image else self.python), "serve", self.model]

    def end(self, container: str) -> list[str]:
        """What ends the arm's container, [] where it has none."""
        side = self.recipe.arms[self.arm]
        return [self.runtime, "rm", "--force", container] if side.image else []

    def client(self, concurrency: int, prompts: int, port: int, seed: int, result: Path) -> Command:
        """vLLM's benchmark client at one concurrency; where its result goes, the prompts' seed and the port unless it is
        the default one are added."""
        spec, url = self.recipe.client, self.recipe.arms[self.arm].url
        if self.recipe.server.launcher == "module":
            start = [self.client_python or sys.executable, "-m", CLIENT_MODULE]
        else:
            start = [*_console(self.client_python), "bench", "serve"]
        words = [*start, "--model", self.model, *spec.args, *self._dataset()]
        words += ["--ignore-eos", "--num-prompts", str(prompts), "--max-concurrency", str(concurrency)]
        words += ["--request-rate", f"{spec.request_rate:g}"] if spec.request_rate else []
        added = (
            ["--base-url", url.rstrip("/")] if url else [] if port == DEFAULT_PORT else ["--port", str(port)]
        )
        added += ["--seed", str(seed), "--save-result"]
        return Command(
            words, {}, [*added, "--result-dir", str(result.parent), "--result-filename", result.name]
        )

    def _dataset(self) -> list[str]:
        spec = self.recipe.client
        if spec.dataset == "random":
            lengths = ["--random-input-len", str(spec.isl), "--random-output-len", str(spec.osl)]
            return ["--dataset-name", "random", *lengths]
        where = ["--dataset-name", spec.dataset, "--dataset-path", spec.dataset_path or ""]
        return [*where, f"--{spec.dataset}-output-len", str(spec.osl)]

    def accuracy(self, url: str, out: Path) -> Command:
        """lm_eval against the arm's server; `{url}` in the recipe's words is the server's address."""
        assert self.recipe.accuracy is not None
        words = [word.replace("{url}", url) for word in self.recipe.accuracy.command]
        return Command(words, {}, ["--output_path", str(out)])


def _console(python: str | None) -> list[str]:
    """The `vllm` command of a python's environment."""
    return [str(Path(python).parent / "vllm") if python else "vllm"]


def server_module(python: str | None) -> str:
    """The server entry that the vLLM of a python has, by its files: nothing is imported."""
    if python is None:
        spec = find_spec("vllm")
        places = [Path(place) for place in spec.submodule_search_locations or []] if spec else []
    else:
        places = list(Path(python).parent.parent.glob("lib/python3*/site-packages/vllm"))
    file = Path(*SERVER_MODULE.split(".")[1:]).with_suffix(".py")
    old = places and not any((place / file).is_file() for place in places)
    return OLD_SERVER_MODULE if old else SERVER_MODULE


def on_standby(words: list[str], go: Path) -> list[str]:
    """The same server behind a process that imports now and starts when the file `go` appears."""
    return [words[0], "-m", STANDBY_MODULE, str(go), *words[2:]]
