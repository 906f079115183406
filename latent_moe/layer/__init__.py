"""One latent MoE layer with real math: built on each rank from one full state dict."""

from latent_moe.layer.checkpoint import Checkpoint, load, save
from latent_moe.layer.model import LatentMoELM, save_random_model
from latent_moe.layer.moe import LatentMoE
from latent_moe.layer.weights import SeededWeights, shard, tensor_shapes

__all__ = [
    "Checkpoint",
    "LatentMoE",
    "LatentMoELM",
    "SeededWeights",
    "load",
    "save",
    "save_random_model",
    "shard",
    "tensor_shapes",
]
