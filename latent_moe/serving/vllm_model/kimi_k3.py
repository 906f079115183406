"""On ROCm: vLLM's own Kimi-K3 with this package's runner in its MoE layers."""

import logging

from latent_moe.errors import InputError

logger = logging.getLogger("vllm.latent_moe")


def give_runner() -> None:
    """Let vLLM's Kimi-K3 for AMD build its MoE layers with TailRunner.

    A vLLM without that model is left alone. Raises InputError where the model is there but takes its runner in a way
    that is not known here.
    """
    try:
        from vllm.models.kimi_k3.amd import linear
    except ImportError:
        logger.info("latent_moe: this vLLM has no Kimi-K3 for AMD, nothing to change")
        return
    from latent_moe.serving.vllm_model.runner import runner_class

    if not isinstance(getattr(linear, "ROCmLatentMoERunner", None), type):
        raise InputError("vLLM's Kimi-K3 has no ROCmLatentMoERunner to replace: an interface not known here")
    linear.ROCmLatentMoERunner = runner_class()
    logger.info("latent_moe: vLLM's Kimi-K3 takes the runner of this package")
