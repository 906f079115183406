"""What vLLM's entry point calls in each of its processes: it makes LatentMoEForCausalLM known.

LATENT_MOE_TAIL (replicated, column_parallel, auto, ...) picks the tail of every latent MoE layer of that model. On
ROCm, and only when the variable is set, vLLM's own Kimi-K3 gets this package's runner too.
"""

import logging
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from latent_moe.runner import Choose

ARCHITECTURE = "LatentMoEForCausalLM"
MODEL_TYPE = "latent_moe"
LOAD_FORMAT = "latent_moe_seeded"
TAIL_VARIABLE = "LATENT_MOE_TAIL"

logger = logging.getLogger("vllm.latent_moe")


def register(choose: "Choose | None" = None) -> None:
    """Register model, config and weight loader with vLLM; may be called more than once in a process.

    `choose` names the tail of each step for LATENT_MOE_TAIL=auto, which is refused without it.
    """
    from transformers import AutoConfig
    from vllm.model_executor.models import ModelRegistry

    from latent_moe.vllm_plugin.hf_config import LatentMoEHFConfig

    AutoConfig.register(MODEL_TYPE, LatentMoEHFConfig, exist_ok=True)
    if ARCHITECTURE not in ModelRegistry.get_supported_archs():
        ModelRegistry.register_model(ARCHITECTURE, f"latent_moe.vllm_plugin.causal_lm:{ARCHITECTURE}")
    if not _loader_is_registered():
        import latent_moe.vllm_plugin.seeded  # noqa: F401 - registers itself
    _name_tail_in_compiled_models()
    if choose is not None:
        from latent_moe.vllm_plugin.choice import hand_over

        hand_over(choose)
    if os.environ.get(TAIL_VARIABLE):
        _give_kimi_k3_our_runner()


def _name_tail_in_compiled_models() -> None:
    """Give each tail its own compiled model in vLLM's cache.

    vLLM finds what torch.compile made for an earlier server by its configuration and by the variables in this registry.
    Without the tail among them a second arm would run the first one's compiled tail, under its own name.
    """
    from vllm import envs

    known = getattr(envs, "environment_variables", None)
    if isinstance(known, dict):
        known.setdefault(TAIL_VARIABLE, lambda: os.environ.get(TAIL_VARIABLE))
    else:
        logger.warning(
            "latent_moe: this vLLM's registry of variables is not known, compiled models are not kept"
        )
        os.environ["VLLM_DISABLE_COMPILE_CACHE"] = "1"


def _loader_is_registered() -> bool:
    return "latent_moe.vllm_plugin.seeded" in sys.modules


def _give_kimi_k3_our_runner() -> None:
    import torch

    if torch.version.hip:
        from latent_moe.vllm_plugin.kimi_k3 import give_runner

        give_runner()
