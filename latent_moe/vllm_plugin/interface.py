"""Which vLLM this is, and whether its mixture-of-experts runner is the one this package knows how to extend.

Nothing is guessed: what the runner here needs is looked for by name and by signature, and a vLLM that lacks it is
refused with what is missing. A version that was never tried but has the known interface runs, and is named in the log.
"""

import inspect
from dataclasses import dataclass
from typing import Any

from latent_moe.errors import InputError

TRIED = ("0.26", "0.32")
_FORWARD = ("self", "hidden_states", "router_logits", "input_ids")
_MEMBERS = (
    "_encode_layer_name",
    "_fused_output_is_reduced",
    "_maybe_add_zero_expert_output",
    "_maybe_pad_hidden_states",
    "_quant_method",
    "_select_forward",
    "apply_routed_input_transform",
)
_FACTORY_ARGUMENTS = {"runner_cls", "routed_input_transform", "routed_output_transform", "shared_experts"}


@dataclass(frozen=True)
class Interface:
    """What of vLLM the model and the runner are built on.

    `reduces_before_transform`: vLLM's own runner sums the latent over the ranks before the norm (0.26 does not).
    """

    version: str
    tried: bool
    factory: Any
    base_runner: type
    reduces_before_transform: bool

    def situ_arguments(self, beta: float, linear_beta: float) -> dict[str, float]:
        """The factory's arguments for SiTU. Raises InputError where this vLLM has no such activation."""
        known = inspect.signature(self.factory).parameters
        if "activation_situ_beta" not in known:
            raise InputError(f"vLLM {self.version}: its experts have no SiTU activation (0.32 has)")
        return {"activation_situ_beta": beta, "activation_situ_linear_beta": linear_beta}


def interface() -> Interface:
    """The interface of the vLLM that is installed. Raises InputError naming the version and what it lacks."""
    version = _version()
    try:
        from vllm.model_executor.layers import fused_moe
        from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner
    except ImportError as error:
        raise InputError(f"vLLM {version}: no runner interface that is known here ({error})") from error
    factory = getattr(fused_moe, "FusedMoEFactory", None) or getattr(fused_moe, "FusedMoE", None)
    missing = _missing(factory, MoERunner)
    if missing:
        raise InputError(
            f"vLLM {version}: its runner interface is not one known here, it lacks {', '.join(missing)}"
        )
    reduces = hasattr(MoERunner, "_maybe_reduce_routed_output_before_transform")
    return Interface(version, version.startswith(TRIED), factory, MoERunner, reduces)


def _version() -> str:
    from latent_moe.platform import describe

    return describe().vllm_version or "of unknown version"


def _missing(factory: Any, runner: type) -> list[str]:
    lacks = [f"MoERunner.{name}" for name in _MEMBERS if not hasattr(runner, name)]
    if tuple(inspect.signature(runner.forward).parameters)[: len(_FORWARD)] != _FORWARD:  # type: ignore[attr-defined]
        lacks.append(f"MoERunner.forward({', '.join(_FORWARD[1:])})")
    if not callable(factory) or isinstance(factory, type):
        return [*lacks, "a FusedMoEFactory or FusedMoE function"]
    arguments = inspect.signature(factory).parameters
    return lacks + [f"the factory's {name}" for name in sorted(_FACTORY_ARGUMENTS - set(arguments))]
