"""What a latent MoE layer looks like: sizes, activation, router, checked when made.

T tokens, H hidden, L latent, E experts, K experts per token, I expert width, tp ranks.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from latent_moe.errors import InputError

ACTIVATIONS = ("silu", "situ")


@dataclass(frozen=True)
class LatentMoEConfig:
    """Sizes and switches of one latent MoE layer.

    `latent_size` None means an ordinary MoE: the experts work on the hidden size and there is no up-projection.
    `shared_width` is the width of the shared experts' one MLP, 0 when there are none. `num_layers` counts MoE
    layers only. `moe_tp_size` is the tensor-parallel size of the experts; it is 1 under expert parallelism, where
    the tensor-parallel process group still has tp ranks (None: the experts follow the group).

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
    sequence_parallel: bool = False
    moe_tp_size: int | None = None

    def __post_init__(self):
        positive = ("hidden_size", "num_experts", "experts_per_token", "expert_width", "num_layers")
        for name in positive:
            _check_count(name, getattr(self, name), 1)
        _check_count("shared_width", self.shared_width, 0)
        if self.latent_size is not None:
            _check_count("latent_size", self.latent_size, 1)
        if self.experts_per_token > self.num_experts:
            raise InputError(f"experts_per_token {self.experts_per_token} > num_experts {self.num_experts}")
        if self.activation not in ACTIVATIONS:
            raise InputError(f"activation {self.activation!r} is none of {', '.join(ACTIVATIONS)}")

    @property
    def is_latent(self) -> bool:
        """Whether the routed experts work in a compressed latent space."""
        return self.latent_size is not None

    @property
    def expert_input_size(self) -> int:
        """The size the routed experts read and write: L, or H when the layer is not latent."""
        return self.latent_size or self.hidden_size

    def replace(self, **changes: Any) -> "LatentMoEConfig":
        """A copy with some fields changed, checked again."""
        return replace(self, **changes)

    def check_tp(self, tp: int) -> None:
        """Raise InputError unless the experts and the shared experts split evenly over `tp` ranks."""
        if tp < 1:
            raise InputError(f"tp {tp} is not a positive number of ranks")
        expert_tp = self.moe_tp_size or tp
        if self.expert_width % expert_tp:
            raise InputError(f"tp {expert_tp} does not divide the expert width {self.expert_width}")
        if self.shared_width % tp:
            raise InputError(f"tp {tp} does not divide the shared experts' width {self.shared_width}")


def _check_count(name: str, value: Any, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InputError(f"{name} {value!r} is not a whole number of at least {least}")


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
# Large enough that the tail's cost shows on a CPU, small enough for eight ranks on two cores.
DEMO = LatentMoEConfig(
    hidden_size=1024,
    latent_size=512,
    num_experts=16,
    experts_per_token=4,
    expert_width=256,
    shared_width=512,
    activation="situ",
)
TINY = LatentMoEConfig(
    hidden_size=64,
    latent_size=32,
    num_experts=8,
    experts_per_token=2,
    expert_width=32,
    shared_width=64,
    activation="situ",
)

PRESETS = {"tiny": TINY, "demo": DEMO, "kimi-k3": KIMI_K3}


def preset(name: str) -> LatentMoEConfig:
    """The preset called `name`. Raises InputError that names the presets there are."""
    if name not in PRESETS:
        raise InputError(f"unknown preset {name!r} (there are: {', '.join(PRESETS)})")
    return PRESETS[name]


def from_hf(source: dict[str, Any] | str | Path) -> LatentMoEConfig:
    """Read a model's config.json (a dict, a file, or a folder that holds one).

    Field names as Kimi-K3 publishes them. Raises InputError naming the file and what it lacks.
    """
    raw, where = _load(source)
    text = raw.get("text_config")
    fields = {**raw, **text} if isinstance(text, dict) else raw
    missing = [name for name in _REQUIRED if fields.get(name) is None]
    if missing:
        raise InputError(f"{where}: no latent MoE (lacks {', '.join(missing)})")
    try:
        return _translate(fields)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


_REQUIRED = (
    "hidden_size",
    "routed_expert_hidden_size",
    "num_experts",
    "num_experts_per_token",
    "moe_intermediate_size",
)


def _translate(raw: dict[str, Any]) -> LatentMoEConfig:
    # One MLP holds all shared experts: its width is their number times one expert's width.
    shared = (raw.get("num_shared_experts") or 0) * raw["moe_intermediate_size"]
    dense = raw.get("first_k_dense_replace") or 0
    return LatentMoEConfig(
        hidden_size=raw["hidden_size"],
        latent_size=raw["routed_expert_hidden_size"],
        num_experts=raw["num_experts"],
        experts_per_token=raw["num_experts_per_token"],
        expert_width=raw["moe_intermediate_size"],
        shared_width=shared,
        num_layers=(raw.get("num_hidden_layers") or dense + 1) - dense,
        latent_norm=raw.get("latent_moe_use_norm", True),
        norm_eps=raw.get("rms_norm_eps", 1e-5),
        activation=raw.get("moe_hidden_act") or raw.get("hidden_act") or "silu",
        routed_scaling_factor=raw.get("routed_scaling_factor", 1.0),
    )


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
