"""A model's config.json, to and from LatentMoEConfig; field names as Kimi-K3 publishes them.

T tokens, H hidden, L latent, E experts, K experts per token, I expert width.
"""

import json
from pathlib import Path
from typing import Any

from latent_moe.config import LatentMoEConfig
from latent_moe.errors import InputError

_REQUIRED = {
    "hidden_size": "hidden_size",
    "latent_size": "routed_expert_hidden_size",
    "num_experts": "num_experts",
    "experts_per_token": "num_experts_per_token",
    "expert_width": "moe_intermediate_size",
}
_OPTIONAL = {
    "latent_norm": "latent_moe_use_norm",
    "norm_eps": "rms_norm_eps",
    "situ_beta": "activation_situ_beta",
    "situ_linear_beta": "activation_situ_linear_beta",
    "routed_scaling_factor": "routed_scaling_factor",
}


def from_hf(source: dict[str, Any] | str | Path) -> LatentMoEConfig:
    """Read a model's config.json (a dict, a file, or a folder that holds one); a `text_config` inside is looked into.

    Raises InputError naming the file and what it lacks or has wrong.
    """
    raw, where = _load(source)
    text = raw.get("text_config")
    found = {**raw, **text} if isinstance(text, dict) else raw
    missing = [key for key in _REQUIRED.values() if found.get(key) is None]
    if missing:
        raise InputError(f"{where}: no latent MoE (lacks {', '.join(missing)})")
    try:
        return _translate(found)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


def to_hf(config: LatentMoEConfig) -> dict[str, Any]:
    """The config.json fields that `from_hf` reads back to the same config.

    Raises InputError for a layer that config.json cannot describe: not latent, or shared experts whose width is
    no multiple of one expert's.
    """
    if config.latent_size is None or config.shared_width % config.expert_width:
        raise InputError(
            "config.json describes latent layers whose shared width is a multiple of the expert width"
        )
    written = {key: getattr(config, name) for name, key in {**_REQUIRED, **_OPTIONAL}.items()}
    return written | {
        "num_shared_experts": config.shared_width // config.expert_width,
        "num_hidden_layers": config.num_layers,
        "first_k_dense_replace": 0,
        "hidden_act": config.activation,
    }


def _translate(raw: dict[str, Any]) -> LatentMoEConfig:
    # One MLP holds all shared experts: its width is their number times one expert's width.
    shared = _count(raw, "num_shared_experts", 0) * _count(raw, "moe_intermediate_size", 1)
    dense = _count(raw, "first_k_dense_replace", 0)
    optional = {name: raw[key] for name, key in _OPTIONAL.items() if raw.get(key) is not None}
    return LatentMoEConfig(
        **{name: raw[key] for name, key in _REQUIRED.items()},
        **optional,
        shared_width=shared,
        num_layers=_count(raw, "num_hidden_layers", dense + 1) - dense,
        activation=raw.get("moe_hidden_act") or raw.get("hidden_act") or "silu",
    )


def _count(raw: dict[str, Any], key: str, default: int) -> int:
    value = raw.get(key)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InputError(f"{key} {value!r} is not a whole number")
    return value


def _load(source: dict[str, Any] | str | Path) -> tuple[dict[str, Any], str]:
    if isinstance(source, dict):
        return source, "config"
    path = Path(source)
    path = path / "config.json" if path.is_dir() else path
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as config.json ({error})") from error
    if not isinstance(raw, dict):
        raise InputError(f"{path}: config.json must hold an object")
    return raw, str(path)
