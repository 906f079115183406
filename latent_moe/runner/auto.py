"""The automatic choice of a tail."""

from latent_moe.config import LatentMoEConfig
from latent_moe.parallel import TensorParallel
from latent_moe.platform import Platform


def pick(tokens: int, config: LatentMoEConfig, tp: TensorParallel, platform: Platform) -> tuple[str, str]:
    """The tail for a step of `tokens` tokens, and why."""
    return "column_parallel", "the change's own tail; no measurement of this machine was consulted"
