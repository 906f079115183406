"""From a recipe and a machine to a plan: the order of sessions, ports, seeds, files and the words of every command."""

import hashlib
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from latent_moe.errors import InputError
from latent_moe.lab.bench.commands import ArmCommands, interpreter
from latent_moe.lab.bench.machine import free_ports
from latent_moe.lab.bench.plan import AccuracyRun, ClientRun, GreedyAnswers, Plan, SessionEntry
from latent_moe.lab.bench.recipe import ParitySpec, Recipe, number_after
from latent_moe.lab.secrets import secret_values
from latent_moe.platform import describe

SCHEMA = 1
_LOWEST_TOKEN_ID = 16
# The prompts of warm-ups are others than the run's: nothing may be known when it starts.
_WARM_SEED = 500_000


def arm_order(arms: list[str], index: int) -> list[str]:
    """The arms of the pair (of more than two arms: the round) number `index`, from 0: A B, B A, A B ...

    Rotations, so that a drift of the machine falls on all arms alike: in as many rounds as there are arms each arm stands
    once in every place. With more than two arms the next rotations are reversed, so that each arm also stands as often
    before as after each other one.
    """
    turns, turned = divmod(index, len(arms))
    rotated = [*arms[turned:], *arms[:turned]]
    return rotated[::-1] if len(arms) > 2 and turns % 2 else rotated


def resolve(
    recipe: Recipe,
    out: str | Path,
    environment: Mapping[str, str] = os.environ,
    ports: Sequence[int] | None = None,
    device: str | None = None,
) -> Plan:
    """The whole plan of a recipe on this machine, whatever is measured already.

    `ports` are those that the servers take turns on (default: free ones); `environment` is where an arm's interpreter
    and the secrets are looked up; `device` replaces the machine's own name.
    """
    count = 2 if recipe.server.standby else 1
    ports = [recipe.server.port] if recipe.server.port else list(ports or free_ports(count))[:count]
    device = device or recipe.device or device_name(tp_size(recipe.server.args))
    resolver = _Resolver(recipe, Path(out), environment, ports, device, describe().kind)
    started = [name for name, arm in recipe.arms.items() if arm.url is None] if recipe.discard_first else []
    slots = [
        (pair, arm) for pair in range(1, recipe.pairs + 1) for arm in arm_order(list(recipe.arms), pair - 1)
    ]
    return Plan(
        name=recipe.name,
        title=recipe.title,
        notes=recipe.notes,
        out=resolver.out,
        sessions=[resolver.session(arm, pair, order) for order, (pair, arm) in enumerate(slots)],
        device=device,
        settings=recipe.settings(),
        baseline=recipe.role_of("baseline") if recipe.with_role("baseline") else "",
        candidates=recipe.with_role("candidate"),
        parameters=resolver.parameters(),
        model_config=recipe.config(),
        secrets=resolver.secrets(),
        discards={arm: resolver.session(arm, 0, -1) for arm in started},
    )


@dataclass(frozen=True)
class _Resolver:
    """Resolves the parts of one recipe."""

    recipe: Recipe
    out: Path
    environment: Mapping[str, str]
    ports: Sequence[int]
    device: str
    kind: str

    def session(self, arm: str, pair: int, order: int) -> SessionEntry:
        """The session of one arm in one pair; pair 0 is the one that is thrown away."""
        recipe, side = self.recipe, self.recipe.arms[arm]
        build, problem = self._commands(arm)
        port = self.ports[order % len(self.ports)]
        url = side.url.rstrip("/") if side.url else f"http://127.0.0.1:{port}"
        stem = f"{order:02d}_{arm}" if pair else f"discarded_{arm}"
        attempt = 1 + sum(1 for _ in (self.out / "logs").glob(f"{stem}_*"))
        folder = self.out / "logs" / f"{stem}_{attempt}"
        container = f"latent_moe_{port}_{stem}_{attempt}"
        runs = self._runs(build, pair, order, port, folder.absolute())
        last = pair == recipe.pairs
        return SessionEntry(
            arm=arm,
            pair=pair,
            order=order,
            model=build.model,
            port=port,
            url=url,
            server=None if side.url else build.server(port, container),
            folder=folder,
            cwd=self.out,
            startup_timeout_s=recipe.server.startup_timeout_s,
            run_timeout_s=recipe.client.timeout_s,
            tail=recipe.tail_of(arm),
            # One rank has nothing to shard: its refusal is meant where a recipe asks for it.
            may_refuse=tp_size(recipe.server_words(arm)) == 1,
            shared_client=recipe.server.launcher == "module",
            runs=list(runs),
            answers=self._answers(arm, build.model, recipe.parity) if last and recipe.parity else None,
            accuracy=self._accuracy(build, url) if last and recipe.accuracy else None,
            go=(folder / "server.go").absolute() if recipe.server.standby else None,
            cleanup=build.end(container),
            ranks=tp_size(recipe.server_words(arm)) if side.image is None and side.starts_vllm else None,
            engine=side.engine,
            note=side.note,
            problem=problem,
        )

    def _commands(self, arm: str) -> tuple[ArmCommands, str | None]:
        """What builds the arm's commands, and why they cannot run here: a plan shows them all the same."""
        side, spec = self.recipe.arms[arm], self.recipe.client
        pythons: list[str | None] = []
        problem = None
        for path, note in ((side.interpreter, side.note), (spec.interpreter, "the client")):
            try:
                pythons.append(interpreter(path, self.environment, note))
            except InputError as error:
                pythons.append(None)
                problem = problem or str(error)
        if spec.dataset_path and not Path(spec.dataset_path).is_file():
            problem = problem or f"the dataset {spec.dataset_path} does not exist"
        own = pythons[0] if side.engine == "vllm" else None
        client = pythons[1] if spec.interpreter else own
        return ArmCommands(self.recipe, arm, pythons[0], client, self.out, self.kind), problem

    def _runs(
        self, build: ArmCommands, pair: int, order: int, port: int, folder: Path
    ) -> Iterator[ClientRun]:
        """The client's runs of a session; the prompts are equal for all arms of a pair, different elsewhere."""
        client = self.recipe.client
        asked = list(enumerate(client.concurrencies))
        for index, concurrency in asked if pair else asked[:1]:
            seed = self.recipe.seed * 1_000_000 + pair * 1_000 + index
            warm = concurrency if client.warmup_prompts is None else client.warmup_prompts
            if warm:
                name, other = f"warmup_c{concurrency}", seed + _WARM_SEED
                result = folder / f"{name}.json"
                command = build.client(concurrency, warm, port, other, result)
                yield ClientRun(name, concurrency, other, command, result)
            result = folder / f"c{concurrency}.json"
            prompts = client.prompts_per_concurrency * concurrency
            command = build.client(concurrency, prompts, port, seed, result)
            if not pair:
                yield ClientRun(f"c{concurrency}", concurrency, seed, command, result)
                continue
            record = self._record(build.arm, pair, order, concurrency, seed)
            run_file = self.out / "runs" / f"{build.arm}_pair{pair}_c{concurrency}.json"
            yield ClientRun(f"c{concurrency}", concurrency, seed, command, result, run_file, record)

    def _arm_record(self, arm: str) -> dict[str, Any]:
        role = self.recipe.arms[arm].role
        return {"schema": SCHEMA, "arm": arm, "role": role, "tail": self.recipe.tail_of(arm)}

    def _record(self, arm: str, pair: int, order: int, concurrency: int, seed: int) -> dict[str, Any]:
        """What a run file says about its run before it has run."""
        client = self.recipe.client
        random_prompts = client.dataset == "random"
        return {
            **self._arm_record(arm),
            **({} if random_prompts else {"dataset": client.dataset, "dataset_sha256": self._dataset_hash()}),
            "pair": pair,
            "order": order,
            "concurrency": concurrency,
            "isl": client.isl if random_prompts else None,
            "osl": client.osl,
            "seed": seed,
            "cold": client.warmup_prompts == 0,
            "prefix_caching": prefix_caching(self.recipe.server_words(arm)),
            "device": self.device,
            "recipe": self.recipe.name,
        }

    def _dataset_hash(self) -> str | None:
        path = Path(self.recipe.client.dataset_path or "")
        return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None

    def _answers(self, arm: str, model: str, spec: ParitySpec) -> GreedyAnswers:
        config = self.recipe.config()
        prompts = greedy_prompts(spec, config["vocab_size"] if config else None)
        record = {**self._arm_record(arm), "device": self.device, "model": model}
        return GreedyAnswers(prompts, spec.max_tokens, self.out / "parity" / f"{arm}.json", record)

    def _accuracy(self, build: ArmCommands, url: str) -> AccuracyRun:
        spec = self.recipe.accuracy
        assert spec is not None
        folder = (self.out / "accuracy" / build.arm).absolute()
        command = build.accuracy(url, folder)
        marker = self.out / "state" / f"accuracy_{build.arm}.done"
        return AccuracyRun(command, spec.timeout_s, folder, marker, spec.note)

    def secrets(self) -> list[str]:
        """What must not be written, of every arm: a client's or a library's message may name another arm's."""
        recipe, arms = self.recipe, list(self.recipe.arms.values())
        env = {f"{index} {name}": value for index, arm in enumerate(arms) for name, value in arm.env.items()}
        accuracy = recipe.accuracy.command if recipe.accuracy else []
        words = [*recipe.server.args, *recipe.client.args, *accuracy]
        words += [word for arm in arms for word in arm.args]
        return secret_values({**recipe.server.env, **env}, words)

    def parameters(self) -> dict[str, Any]:
        """What the manifest says the results depend on, with what `predict` needs as far as the recipe says it."""
        recipe, client = self.recipe, self.recipe.client
        arms = {
            name: {"role": arm.role, "tail": recipe.tail_of(name), "engine": arm.engine, "image": arm.image}
            for name, arm in recipe.arms.items()
        }
        known = {
            "tp": tp_size(recipe.server.args),
            "max_num_batched_tokens": number_after(recipe.server.args, "--max-num-batched-tokens"),
            **_layer_sizes(recipe.config()),
        }
        return {
            "model": recipe.model.preset or recipe.model.name,
            "model_changes": recipe.model.changes,
            "server_arguments": recipe.server.args,
            "arms": arms,
            "isl": client.isl if client.dataset == "random" else None,
            "osl": client.osl,
            "concurrencies": client.concurrencies,
            "prompts_per_concurrency": client.prompts_per_concurrency,
            "warmup_prompts": client.warmup_prompts,
            "client_arguments": client.args,
            "dataset": client.dataset,
            "request_rate": client.request_rate,
            "primary_metric": recipe.primary_metric,
            "pairs": recipe.pairs,
            "seed": recipe.seed,
            **{name: value for name, value in known.items() if value is not None},
        }


def _layer_sizes(config: dict[str, Any] | None) -> dict[str, Any]:
    if config is None:
        return {}
    return {
        "experts": {"number": config["num_experts"], "per_token": config["num_experts_per_token"]},
        "moe_layers": config["num_hidden_layers"] - config["first_k_dense_replace"],
        "config": {
            "hidden_size": config["hidden_size"],
            "latent_size": config["routed_expert_hidden_size"],
        },
    }


def greedy_prompts(spec: ParitySpec, vocab_size: int | None) -> list[str | list[int]]:
    """The recipe's texts, or token ids drawn with a fixed seed (the same for every arm and every run)."""
    if spec.prompts:
        return list(spec.prompts)
    draw = random.Random(51253)
    top = vocab_size or 1024
    return [[draw.randrange(_LOWEST_TOKEN_ID, top) for _ in range(spec.length)] for _ in range(spec.count)]


def device_name(ranks: int | None) -> str:
    """What this machine is: "2 x NVIDIA H200", "Xeon ..., 2 cores"; `ranks` None: all devices that there are."""
    here = describe()
    if here.kind == "unknown":
        return "unknown"
    if here.kind == "cpu":
        return f"{here.device_name}, {os.cpu_count()} cores"
    count = ranks or here.device_count
    return here.device_name if count == 1 else f"{count} x {here.device_name}"


def tp_size(arguments: Sequence[str]) -> int | None:
    """The server's --tensor-parallel-size (-tp in vLLM, --tp and --tp-size in SGLang), None where it is no number."""
    options = ("--tensor-parallel-size", "-tp", "--tp-size", "--tp")
    return next((size for option in options if (size := number_after(arguments, option))), None)


def prefix_caching(arguments: Sequence[str]) -> bool | None:
    """Whether the server caches prefixes, None where its arguments do not say."""
    if {"--no-enable-prefix-caching", "--disable-radix-cache"} & {*arguments}:
        return False
    return True if "--enable-prefix-caching" in arguments else None
