"""latent_moe: a lab for the tail of a latent MoE layer.

Public names are looked up when they are first used, so that ``import latent_moe`` stays cheap and pulls in
neither vllm nor plotly nor jupyter nor pandas.
"""

from importlib import import_module

__version__ = "0.1.0"

_PUBLIC = {
    "LatentMoEConfig": "config",
    "preset": "config",
    "KIMI_K3": "config",
    "DEMO": "config",
    "TINY": "config",
    "TensorParallel": "parallel",
    "launch": "parallel",
    "LatentMoE": "layer",
    "MoERunner": "runner",
    "ROCmLatentMoERunner": "runner",
    "TAILS": "tail_variants.registry",
    "InputError": "errors",
    "LatentMoEError": "errors",
}

__all__ = [*_PUBLIC, "__version__"]


def __getattr__(name: str):
    if name not in _PUBLIC:
        raise AttributeError(f"module 'latent_moe' has no attribute {name!r}")
    return getattr(import_module(f"latent_moe.{_PUBLIC[name]}"), name)
