"""A checkpoint's tensors into the model's parameters, each exactly where it belongs, none forgotten."""

from collections.abc import Iterable

import torch
from torch import nn

from latent_moe.errors import InputError

# checkpoint part -> (stacked parameter's part, which shard of it)
STACKED: dict[str, tuple[str, str | int]] = {
    ".self_attn.q_proj.": (".self_attn.qkv_proj.", "q"),
    ".self_attn.k_proj.": (".self_attn.qkv_proj.", "k"),
    ".self_attn.v_proj.": (".self_attn.qkv_proj.", "v"),
    ".shared_experts.gate_proj.": (".shared_experts.gate_up_proj.", 0),
    ".shared_experts.up_proj.": (".shared_experts.gate_up_proj.", 1),
}
EXPERTS = ".block_sparse_moe.experts."


def load(model: nn.Module, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
    """Load every (name, tensor); returns the names of the parameters that were filled.

    Raises InputError for a tensor that the model has no place for, and for parameters that stay without weights.
    """
    parameters = dict(model.named_parameters())
    loaded: set[str] = set()
    for name, tensor in weights:
        loaded.update(_load_one(model, parameters, name, tensor))
    missing = sorted(set(parameters) - loaded)
    if missing:
        raise InputError(f"the checkpoint lacks {len(missing)} of the model's parameters, {missing[0]} first")
    return loaded


def _load_one(model: nn.Module, parameters: dict, name: str, tensor: torch.Tensor) -> set[str]:
    if EXPERTS in name:
        return _load_expert(model, name, tensor)
    part = next((part for part in STACKED if part in name), None)
    if part is None:
        return _fill(parameters, name, tensor, name)
    target, shard = STACKED[part]
    return _fill(parameters, name.replace(part, target), tensor, name, shard)


def _fill(parameters: dict, target: str, tensor: torch.Tensor, name: str, *shard) -> set[str]:
    from vllm.model_executor.model_loader.weight_utils import default_weight_loader

    if target not in parameters:
        raise InputError(f"the checkpoint's {name} has no place in the model")
    parameter = parameters[target]
    getattr(parameter, "weight_loader", default_weight_loader)(parameter, tensor, *shard)
    return {target}


def _load_expert(model: nn.Module, name: str, tensor: torch.Tensor) -> set[str]:
    prefix, _, within = name.partition(EXPERTS)
    runner = model.get_submodule(prefix + EXPERTS.rstrip("."))
    # vLLM versions report with or without the inner module's name.
    reported = {str(done).removeprefix("routed_experts.") for done in runner.load_weights([(within, tensor)])}
    if not reported:
        raise InputError(f"the checkpoint's {name} has no place in the model")
    return {f"{prefix}{EXPERTS}routed_experts.{done}" for done in reported}
