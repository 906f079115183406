"""On ROCm: vLLM's own Kimi-K3 with this package's runner in its MoE layers.

vLLM's layer names its runner class where it builds its experts; that name is looked up in the module at that moment, so
the name is what is replaced. Everything this rests on is checked first, and a vLLM that differs is refused by version.
"""

import inspect
import logging
from types import ModuleType

from latent_moe.errors import InputError

logger = logging.getLogger("vllm.latent_moe")
RUNNER = "ROCmLatentMoERunner"
LAYER = "KimiMoE"
ARGUMENT = "runner_cls"
TRANSFORM = "KimiRoutedOutputTransform"


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

    ours, version = runner_class(), interface().version
    if getattr(linear, RUNNER, None) is ours:
        return
    if lacks := missing(linear):
        raise InputError(
            f"vLLM {version}: its Kimi-K3 takes its runner in a way that is not known here, it lacks {'; '.join(lacks)}"
        )
    setattr(linear, RUNNER, ours)
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
