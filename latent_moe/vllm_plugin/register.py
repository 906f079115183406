"""What vLLM's entry point calls in each of its processes: it makes LatentMoEForCausalLM known.

LATENT_MOE_TAIL (a tail's name, or auto) picks the tail of every latent MoE layer of that model. On ROCm, and only when
the variable is set, vLLM's own Kimi-K3 gets this package's runner too: vLLM's layer names its runner class where it
builds its experts, that name is looked up in the module at that moment, and so the name is what is replaced. Everything
this rests on is checked first, and a vLLM that differs is refused by version.
"""

import inspect
import logging
import os
from types import ModuleType
from typing import TYPE_CHECKING

from latent_moe.errors import InputError

if TYPE_CHECKING:
    from latent_moe.runner import Choose

ARCHITECTURE = "LatentMoEForCausalLM"
MODEL_TYPE = "latent_moe"
LOAD_FORMAT = "latent_moe_seeded"
TAIL_VARIABLE = "LATENT_MOE_TAIL"
# Names in vLLM's module of Kimi-K3 for AMD.
RUNNER = "ROCmLatentMoERunner"
LAYER = "KimiMoE"
ARGUMENT = "runner_cls"
TRANSFORM = "KimiRoutedOutputTransform"

logger = logging.getLogger("vllm.latent_moe")


def register(choose: "Choose | None" = None) -> None:
    """Register model, config and weight loader with vLLM; may be called more than once in a process.

    `choose` names the tail of each step for LATENT_MOE_TAIL=auto, which is refused without it.
    """
    import torch
    from transformers import AutoConfig
    from vllm.model_executor.models import ModelRegistry

    # The seeded loader registers itself in there.
    from latent_moe.vllm_plugin.checkpoint import LatentMoEHFConfig

    AutoConfig.register(MODEL_TYPE, LatentMoEHFConfig, exist_ok=True)
    if ARCHITECTURE not in ModelRegistry.get_supported_archs():
        ModelRegistry.register_model(ARCHITECTURE, f"latent_moe.vllm_plugin.model:{ARCHITECTURE}")
    _name_tail_in_compiled_models()
    if choose is not None:
        from latent_moe.vllm_plugin.choice import hand_over

        hand_over(choose)
    if os.environ.get(TAIL_VARIABLE) and torch.version.hip:
        give_runner()


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


def give_runner() -> None:
    """Let vLLM's Kimi-K3 for AMD build its MoE layers with TailRunner.

    A vLLM without that model is left alone. Raises InputError, with vLLM's version and what is missing, where the model is
    there but takes its runner in a way that is not known here.
    """
    try:
        from vllm.models.kimi_k3.amd import linear
    except ImportError as error:
        logger.info("latent_moe: this vLLM has no Kimi-K3 for AMD (%s), nothing to change", error)
        return
    from latent_moe.vllm_plugin.interface import interface
    from latent_moe.vllm_plugin.tail_runner import runner_class

    tail_runner, version = runner_class(), interface().version
    if getattr(linear, RUNNER, None) is tail_runner:
        return
    if lacks := missing(linear):
        raise InputError(
            f"vLLM {version}: its Kimi-K3 takes its runner in a way that is not known here, it lacks {'; '.join(lacks)}"
        )
    setattr(linear, RUNNER, tail_runner)
    logger.info("latent_moe: the Kimi-K3 of vLLM %s takes the runner of this package", version)


def missing(linear: ModuleType) -> list[str]:
    """What of vLLM's module for Kimi-K3 is not as it must be for the runner's name to be replaced."""
    layer = getattr(linear, LAYER, None)
    lacks = [] if isinstance(getattr(linear, RUNNER, None), type) else [f"a class {RUNNER}"]
    if not isinstance(layer, type):
        return [*lacks, f"a class {LAYER}"]
    code = layer.__init__.__code__  # type: ignore[misc]
    if RUNNER not in code.co_names:
        lacks.append(f"{LAYER} building its experts with {RUNNER}")
    # Calls with few keyword arguments keep their names in one tuple, long ones each by itself.
    if not any(
        names == ARGUMENT or (isinstance(names, tuple) and ARGUMENT in names) for names in code.co_consts
    ):
        lacks.append(f"{LAYER} passing {ARGUMENT}")
    return lacks + _missing_of_transform(getattr(linear, TRANSFORM, None))


def _missing_of_transform(transform) -> list[str]:
    """The runner reads the norm and the up-projection from the transform: it must hold them by these names."""
    if not isinstance(transform, type):
        return [f"a class {TRANSFORM}"]
    known = inspect.signature(transform).parameters
    return [f"{TRANSFORM}({name})" for name in ("norm", "up_proj") if name not in known]
