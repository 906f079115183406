"""Runners execute a latent MoE layer's experts and end it with a tail.

`MoERunner` is the baseline; `ROCmLatentMoERunner` is the change: it shards the tail where that is possible.
"""

from latent_moe.runner.base import Decision, MoERunner, make_runner
from latent_moe.runner.eligibility import Refusal, refusal
from latent_moe.runner.rocm import Choose, ROCmLatentMoERunner

__all__ = ["Choose", "Decision", "MoERunner", "ROCmLatentMoERunner", "Refusal", "make_runner", "refusal"]
