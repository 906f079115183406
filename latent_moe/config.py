"""What a latent MoE layer looks like: sizes, activation, router, checked when made; presets; a model's config.json.

T tokens, H hidden, L latent, E experts, K experts per token, I expert width, tp ranks. Field names in config.json are
those that Kimi-K3 publishes.
"""

import json
import math
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from latent_moe.errors import InputError, unknown
from latent_moe.files import check_regular

ACTIVATIONS = ("silu", "situ")


@dataclass(frozen=True)
class LatentMoEConfig:
    """Sizes and switches of one latent MoE layer.

    `latent_size` None means an ordinary MoE: the experts work on the hidden size and there is no up-projection.
    `shared_width` is the width of the shared experts' one MLP, 0 when there are none. `num_layers` counts MoE
    layers only. `moe_tp_size` is the tensor-parallel size of the experts; it is 1 under expert parallelism, where
    the tensor-parallel process group still has tp ranks (None: the experts follow the group).
    `routed_scaling_factor` multiplies the router's weights, or the routed output when `scale_routed_output` is
    set (vLLM's `apply_routed_scale_to_output`); only the latter is in the way of a sharded tail.

    Raises InputError for sizes that no layer can have.
    """

    hidden_size: int
    latent_size: int | None
    num_experts: int
    experts_per_token: int
    expert_width: int
    shared_width: int
    num_layers: int = 1
    latent_norm: bool = True
    norm_eps: float = 1e-5
    activation: str = "silu"
    situ_beta: float = 4.0
    situ_linear_beta: float = 25.0
    routed_scaling_factor: float = 1.0
    scale_routed_output: bool = False
    sequence_parallel: bool = False
    moe_tp_size: int | None = None

    def __post_init__(self):
        for name in ("hidden_size", "num_experts", "experts_per_token", "expert_width", "num_layers"):
            _check_count(name, getattr(self, name), 1)
        _check_count("shared_width", self.shared_width, 0)
        for name in ("latent_size", "moe_tp_size"):
            if getattr(self, name) is not None:
                _check_count(name, getattr(self, name), 1)
        for name in ("norm_eps", "situ_beta", "situ_linear_beta", "routed_scaling_factor"):
            _check_positive(name, getattr(self, name))
        for name in ("latent_norm", "scale_routed_output", "sequence_parallel"):
            if not isinstance(getattr(self, name), bool):
                raise InputError(f"{name} {getattr(self, name)!r} is neither true nor false")
        if self.experts_per_token > self.num_experts:
            raise InputError(f"experts_per_token {self.experts_per_token} > num_experts {self.num_experts}")
        if self.activation not in ACTIVATIONS:
            raise unknown("activation", self.activation, ACTIVATIONS)

    @property
    def is_latent(self) -> bool:
        """Whether the routed experts work in a compressed latent space."""
        return self.latent_size is not None

    @property
    def expert_input_size(self) -> int:
        """The size the routed experts read and write: L, or H when the layer is not latent."""
        return self.latent_size or self.hidden_size

    @property
    def runner_scale(self) -> float:
        """The factor that the runner applies to the routed output: 1.0 when the router's weights carry it."""
        return self.routed_scaling_factor if self.scale_routed_output else 1.0

    def expert_parallel(self, tp: int) -> bool:
        """Whether whole experts are spread over a group of `tp` ranks (moe_tp_size = 1)."""
        return tp > 1 and self.moe_tp_size == 1

    def replace(self, **changes: Any) -> "LatentMoEConfig":
        """A copy with some fields changed, checked again. Raises InputError for a field that does not exist."""
        unknown = sorted(set(changes) - {field.name for field in fields(self)})
        if unknown:
            raise InputError(f"a latent MoE layer has no {', '.join(unknown)}")
        return replace(self, **changes)

    def check_tp(self, tp: int) -> None:
        """Raise InputError unless the experts and the shared experts split evenly over `tp` ranks."""
        _check_count("tp", tp, 1)
        if self.moe_tp_size not in (None, 1, tp):
            raise InputError(f"moe_tp_size {self.moe_tp_size} is neither 1 nor the group's tp {tp}")
        if self.expert_parallel(tp):
            if self.num_experts % tp:
                raise InputError(f"tp {tp} does not divide the number of experts {self.num_experts}")
        elif self.expert_width % tp:
            raise InputError(f"tp {tp} does not divide the expert width {self.expert_width}")
        if self.shared_width % tp:
            raise InputError(f"tp {tp} does not divide the shared experts' width {self.shared_width}")


def _check_count(name: str, value: Any, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InputError(f"{name} {value!r} is not a whole number of at least {least}")


def _check_positive(name: str, value: Any) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (number and math.isfinite(value) and value > 0):
        raise InputError(f"{name} {value!r} is not a positive number")


# Kimi-K3: the model's published config.json. 93 layers of which the first is dense; two shared experts as one MLP.
KIMI_K3 = LatentMoEConfig(
    hidden_size=7168,
    latent_size=3584,
    num_experts=896,
    experts_per_token=16,
    expert_width=3072,
    shared_width=6144,
    num_layers=92,
    activation="situ",
)
# Its layer with few experts: what one or two GPUs of 140 GB hold, and with all its layers what eight hold in bf16.
K3_SLICE = KIMI_K3.replace(num_experts=16, experts_per_token=4, num_layers=6, activation="silu")
K3_EIGHT = KIMI_K3.replace(num_experts=64, activation="silu")
# H, L, E, K, I, shared width. demo: the tail's cost shows on a CPU, and two cores carry eight ranks of it. cpu: sized so
# that a first token's time shows the up-projection on two cores. The tiny ones are for tests.
DEMO = LatentMoEConfig(1024, 512, 16, 4, 256, 512, activation="situ")
CPU = LatentMoEConfig(2048, 1536, 8, 2, 512, 512, num_layers=6)
TINY = LatentMoEConfig(64, 32, 8, 2, 32, 64, activation="situ")
SERVED_TINY = LatentMoEConfig(128, 64, 8, 2, 64, 64, num_layers=2)

PRESETS = {
    "tiny": TINY, "demo": DEMO, "kimi-k3": KIMI_K3,
    "served_tiny": SERVED_TINY, "cpu": CPU, "k3_slice": K3_SLICE, "k3_eight": K3_EIGHT,
}  # fmt: skip


def preset(name: str) -> LatentMoEConfig:
    """The preset called `name`. Raises InputError that names the presets there are."""
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    return PRESETS[name]


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
    merged = {**raw, **text} if isinstance(text, dict) else raw
    missing = [key for key in _REQUIRED.values() if merged.get(key) is None]
    if missing:
        raise InputError(f"{where}: no latent MoE (lacks {', '.join(missing)})")
    try:
        return _translate(merged)
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
    check_regular(path)
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as config.json ({error})") from error
    if not isinstance(raw, dict):
        raise InputError(f"{path}: config.json must hold an object")
    return raw, str(path)
