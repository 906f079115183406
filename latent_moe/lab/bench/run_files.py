"""What `bench` writes: one file per run, the greedy answers, and the manifest that says where all of it is from."""

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from latent_moe.lab import recordings
from latent_moe.lab.bench import schedule
from latent_moe.lab.bench.model_dir import model_config
from latent_moe.lab.bench.options import number_after, tail_of
from latent_moe.lab.bench.recipe import Recipe
from latent_moe.lab.secrets import hide, secret_values
from latent_moe.platform import describe

SCHEMA = 1
# Lists with one entry a request: vLLM's own client leaves them out unless asked, so do we.
_PER_REQUEST = (
    "input_lens",
    "output_lens",
    "start_times",
    "ttfts",
    "itls",
    "generated_texts",
    "errors",
    "latencies",
    "queue_times",
)


@dataclass(frozen=True)
class BootFacts:
    """What is known about one server start."""

    boot: schedule.Boot
    identity: str
    vllm_version: str | None
    gemm: str | None
    device: str
    prefix_caching: bool | None


def replace_facts(facts: BootFacts, vllm_version: str | None, gemm: str | None) -> BootFacts:
    """The facts with what was learned since."""
    return replace(facts, vllm_version=vllm_version or facts.vllm_version, gemm=gemm or facts.gemm)


def device_name(recipe: Recipe) -> str:
    """The recipe's own words, else what this machine is: "2 x NVIDIA H200", "Xeon ..., 2 cores"."""
    if recipe.device:
        return recipe.device
    here = describe()
    if here.kind == "cpu":
        return f"{here.device_name}, {os.cpu_count()} cores"
    ranks = tp_size(recipe.server.args) or here.device_count
    return here.device_name if ranks == 1 else f"{ranks} x {here.device_name}"


def tp_size(arguments: list[str]) -> int | None:
    """The server's --tensor-parallel-size, None where it is not given as a number."""
    return number_after(arguments, "--tensor-parallel-size") or number_after(arguments, "-tp")


def prefix_caching(arguments: list[str]) -> bool | None:
    """Whether the server caches prefixes, None where its arguments do not say."""
    if "--no-enable-prefix-caching" in arguments:
        return False
    return True if "--enable-prefix-caching" in arguments else None


def run_record(
    recipe: Recipe,
    facts: BootFacts,
    concurrency: int,
    result: Mapping[str, Any],
    started: datetime,
    extra: dict,
) -> dict[str, Any]:
    """vLLM's own result with our key beside its keys."""
    boot, client = facts.boot, recipe.client
    ours = {
        "schema": SCHEMA,
        "arm": boot.arm,
        "role": recipe.arms[boot.arm].role,
        "pair": boot.pair,
        "order": boot.order,
        "boot": facts.identity,
        "concurrency": concurrency,
        "isl": client.isl,
        "osl": client.osl,
        "seed": schedule.seed(recipe, boot.pair, concurrency),
        "tail": tail_of(recipe, boot.arm),
        "cold": client.warmup_prompts == 0,
        "prefix_caching": facts.prefix_caching,
        "device": facts.device,
        "vllm_version": facts.vllm_version,
        "gemm": facts.gemm,
        "recipe": recipe.name,
        "started": started.isoformat(timespec="seconds"),
        **extra,
    }
    return {**{key: value for key, value in result.items() if key not in _PER_REQUEST}, "latent_moe": ours}


def secrets_of(recipe: Recipe) -> list[str]:
    """What must not be written, of every arm: a client's or a library's message may name another arm's."""
    arms = recipe.arms.values()
    env = {f"{index} {name}": value for index, arm in enumerate(arms) for name, value in arm.env.items()}
    accuracy = recipe.accuracy.command if recipe.accuracy else []
    words = [
        *recipe.server.args,
        *recipe.client.args,
        *accuracy,
        *(word for arm in arms for word in arm.args),
    ]
    return secret_values({**recipe.server.env, **env}, words)


def answers_record(recipe: Recipe, facts: BootFacts, model: str, prompts: list) -> dict[str, Any]:
    """A parity file."""
    arm = facts.boot.arm
    ours = {"schema": SCHEMA, "arm": arm, "role": recipe.arms[arm].role, "boot": facts.identity}
    ours |= {"device": facts.device, "vllm_version": facts.vllm_version}
    ours |= {"tail": tail_of(recipe, arm), "model": model}
    assert recipe.parity is not None
    return {"latent_moe": ours, "max_tokens": recipe.parity.max_tokens, "prompts": prompts}


def save(path: Path, record: Any, secrets: list[str]) -> None:
    """Write a record whole, with every secret value hidden."""
    schedule.write_whole(path, _hidden(record, secrets))


def _hidden(value: Any, secrets: list[str]) -> Any:
    if isinstance(value, str):
        return hide(value, secrets)
    if isinstance(value, dict):
        return {key: _hidden(item, secrets) for key, item in value.items()}
    return [_hidden(item, secrets) for item in value] if isinstance(value, list) else value


def scrub(folder: Path, secrets: list[str]) -> None:
    """Hide secrets in every text file below `folder` that another program wrote."""
    for path in (path for path in folder.rglob("*") if path.is_file()):
        text = path.read_text(encoding="utf-8", errors="surrogateescape")
        if (clean := hide(text, secrets)) != text:
            path.write_text(clean, encoding="utf-8", errors="surrogateescape")


def write_manifest(recipe: Recipe, out: Path, device: str, versions: Mapping[str, str]) -> None:
    """manifest.json for what lies in `out` now."""
    files = {str(path.relative_to(out)): _describe(path) for path in _data_files(out)}
    here = describe()
    manifest = recordings.Manifest(
        name=recipe.name,
        kind="measured",
        title=recipe.title,
        device=device,
        date=datetime.now().astimezone().date().isoformat(),
        command=f"latent-moe bench {recipe.name}",
        software={**_software_so_far(out), "torch": here.torch_version, **versions},
        files=files,
        parameters=_parameters(recipe),
        notes=recipe.notes,
    )
    recordings.write_manifest(out, recordings.Manifest(**_hidden(asdict(manifest), secrets_of(recipe))))


def _software_so_far(out: Path) -> dict[str, str]:
    """What an interrupted session wrote: a resumed one may boot only some of the arms."""
    return recordings.load_manifest(out).software if (out / recordings.MANIFEST).is_file() else {}


def _data_files(out: Path) -> list[Path]:
    rooms = ("runs", "parity", "accuracy")
    return sorted(path for room in rooms for path in (out / room).rglob("*") if path.is_file())


def _describe(path: Path) -> str:
    kinds = {"runs": "one run of vLLM's benchmark client", "parity": "greedy answers of one arm"}
    return kinds.get(path.parent.name, "as lm_eval wrote it")


def _parameters(recipe: Recipe) -> dict[str, Any]:
    client = recipe.client
    return {
        "model": recipe.model.preset or recipe.model.name,
        "model_changes": recipe.model.changes,
        "server_arguments": recipe.server.args,
        "arms": {
            name: {"role": arm.role, "tail": tail_of(recipe, name)} for name, arm in recipe.arms.items()
        },
        "isl": client.isl,
        "osl": client.osl,
        "concurrencies": client.concurrencies,
        "prompts_per_concurrency": client.prompts_per_concurrency,
        "warmup_prompts": client.warmup_prompts,
        "client_arguments": client.args,
        "pairs": recipe.pairs,
        "seed": recipe.seed,
        **_what_predict_needs(recipe),
    }


def _what_predict_needs(recipe: Recipe) -> dict[str, Any]:
    """Ranks, tokens a step and the layer's sizes, as far as the recipe says them."""
    args = recipe.server.args
    found: dict[str, Any] = {
        "tp": tp_size(args),
        "max_num_batched_tokens": number_after(args, "--max-num-batched-tokens"),
    }
    if recipe.model.preset is not None:
        config = model_config(recipe.model.preset, recipe.model.changes)
        found["experts"] = {"number": config["num_experts"], "per_token": config["num_experts_per_token"]}
        found["moe_layers"] = config["num_hidden_layers"] - config["first_k_dense_replace"]
        sizes = {"hidden_size": config["hidden_size"], "latent_size": config["routed_expert_hidden_size"]}
        found["config"] = sizes
    return {name: value for name, value in found.items() if value is not None}
