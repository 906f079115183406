"""The same weights through vLLM's own ROCmLatentMoERunner and through this package's, at tp = 2 in fp32.

T tokens, H hidden, L latent, E experts, I expert width, tp ranks. vLLM is imported inside the ranks only; each rank
builds vLLM's KimiMoE with the same weights and runs both layers on the same tokens.
"""

import logging
import os
import time
import warnings
from contextlib import ExitStack
from typing import Any

import torch

from latent_moe.config import LatentMoEConfig
from latent_moe.errors import LatentMoEError
from latent_moe.layer import LatentMoE
from latent_moe.parallel import TensorParallel, launch
from latent_moe.platform import describe
from latent_moe.runner import ROCmLatentMoERunner
from latent_moe.verify.reference import inputs, relative_error
from latent_moe.weights import SeededWeights, shard

BOUND = 1e-5
TP = 2
TOKENS = 24
# The versions whose interface this oracle was written for and has run against.
KNOWN = ("0.32",)
# vLLM's CPU experts take silu only, and its KimiMoE pads widths below 256 a rank: this layer needs neither.
CONFIG = LatentMoEConfig(
    hidden_size=512,
    latent_size=256,
    num_experts=8,
    experts_per_token=2,
    expert_width=512,
    shared_width=512,
    activation="silu",
)


def ask_vllm(seed: int, timeout_s: float = 300) -> dict[str, Any]:
    """Launch two ranks and compare; {"name", "ok", "version", "rel_err", "baseline_rel_err", "bound", ...}.

    `rel_err` is norm2(x - vLLM's) / norm2(vLLM's) of the sharded tail, `baseline_rel_err` that of the baseline,
    each the worst over the ranks. Where vLLM is absent, of an unknown version, or fails, `ok` is False, the errors
    are None and `reason` says why in one line.
    """
    version = describe().vllm_version
    answer = {"name": "vllm", "version": version, "tp": TP, "bound": BOUND, "dtype": "float32"}
    reason = _unusable(version)
    if reason is None:
        started = time.monotonic()
        try:
            ranks = launch(compare_rank, TP, CONFIG, seed, TOKENS, timeout_s=timeout_s, backend="gloo")
        except LatentMoEError as error:
            reason = f"vLLM {version} could not be asked: {error}"
        else:
            return answer | _compared(ranks) | {"seconds": round(time.monotonic() - started, 1)}
    missing = {"rel_err": None, "baseline_rel_err": None, "reason": reason}
    return answer | {"ok": False} | missing


def _unusable(version: str | None) -> str | None:
    if version is None:
        return "vLLM is not installed here"
    if not version.startswith(tuple(f"{known}." for known in KNOWN)):
        return f"vLLM {version} is not a version this oracle knows ({', '.join(KNOWN)})"
    if torch.cuda.is_available():
        return "the oracle compares on the CPU with vLLM's CPU build; this machine's torch is a GPU build"
    return None


def _compared(ranks: list[dict[str, Any]]) -> dict[str, Any]:
    errors = [rank["rel_err"] for rank in ranks]
    baseline = [rank["baseline_rel_err"] for rank in ranks]
    return {
        "ok": all(error <= BOUND for error in errors + baseline),
        "rel_err": max(errors),
        "baseline_rel_err": max(baseline),
        "class": ranks[0]["class"],
        "sharded": all(rank["sharded"] for rank in ranks),
        "reason": None,
    }


def compare_rank(tp: TensorParallel, config: LatentMoEConfig, seed: int, tokens: int) -> dict[str, Any]:
    """Relative errors of this package's two runners against vLLM's, on this rank."""
    weights = SeededWeights(config, seed)
    x = inputs(config, weights, tokens, seed, [torch.float32])
    # The known version calls a collective by the name that torch has since renamed.
    warnings.filterwarnings("ignore", message=".*all_gather_into_tensor", category=FutureWarning)
    oracle = _vllm_outputs(tp, config, weights, x)
    sharded = LatentMoE(config, tp, weights, runner_cls=ROCmLatentMoERunner)
    baseline = LatentMoE(config, tp, weights)
    return {
        "rel_err": relative_error(sharded(x), oracle["sharded_tail"]),
        "baseline_rel_err": relative_error(baseline(x), oracle["baseline"]),
        "class": oracle["class"],
        "sharded": oracle["sharded"] and sharded.runner.last.tail == "column_parallel",
    }


def _vllm_outputs(tp, config, weights, x) -> dict[str, Any]:
    # vLLM compiles one small function with a C++ compiler otherwise, which fails below a folder with a space in its name.
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    logging.disable(logging.WARNING)
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.forward_context import set_forward_context

    vllm_config = VllmConfig()
    vllm_config.parallel_config.tensor_parallel_size = tp.size
    with ExitStack() as stack, torch.no_grad():
        stack.enter_context(set_current_vllm_config(vllm_config))
        _join_vllm(tp, stack)
        layer = _vllm_layer(tp, config, weights)
        stack.enter_context(set_forward_context(None, vllm_config))
        return _run(layer, x)


def _join_vllm(tp: TensorParallel, stack: ExitStack) -> None:
    from vllm.distributed import init_distributed_environment, initialize_model_parallel
    from vllm.distributed.parallel_state import destroy_model_parallel

    # vLLM takes the default process group that this rank already has.
    init_distributed_environment(world_size=tp.size, rank=tp.rank, local_rank=tp.rank, backend="gloo")
    # Its own groups hold shared memory that must not outlive the rank.
    stack.callback(destroy_model_parallel)
    initialize_model_parallel(tp.size)


def _run(layer, x) -> dict[str, Any]:
    from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner
    from vllm.models.kimi_k3.amd.latent_moe_runner import ROCmLatentMoERunner as VLLMRunner

    runner = layer.experts
    logits, _ = layer.gate(x)
    return {
        "sharded_tail": layer(x.clone()).clone(),
        # The baseline's forward on the same object: vLLM's class inherits it and falls back on it.
        "baseline": MoERunner.forward(runner, x.clone(), logits).clone(),
        "class": f"{type(runner).__module__}.{type(runner).__qualname__}",
        "sharded": type(runner) is VLLMRunner and bool(runner._tail_shardable),
    }


def _vllm_layer(tp, config: LatentMoEConfig, weights):
    from vllm.models.kimi_k3.amd.linear import KimiMoE

    layer: Any = KimiMoE(_kimi_config(config), prefix="model.layers.0.block_sparse_moe")
    _fill(layer, tp, config, weights)
    up = layer.routed_expert_up_proj
    kept = up.weight.data.clone()
    for module in layer.modules():
        method: Any = getattr(module, "quant_method", None)
        if hasattr(method, "process_weights_after_loading"):
            method.process_weights_after_loading(module)
    # The CPU backend repacks weights and may empty them; the sharded tail reads this one.
    up.weight = torch.nn.Parameter(kept, requires_grad=False)
    return layer


def _kimi_config(config: LatentMoEConfig):
    from vllm.transformers_utils.configs.kimi_linear import KimiLinearConfig

    return KimiLinearConfig(
        hidden_size=config.hidden_size,
        routed_expert_hidden_size=config.latent_size,
        moe_intermediate_size=config.expert_width,
        num_experts=config.num_experts,
        num_experts_per_token=config.experts_per_token,
        num_shared_experts=config.shared_width // config.expert_width,
        latent_moe_use_norm=config.latent_norm,
        rms_norm_eps=config.norm_eps,
        hidden_act=config.activation,
        num_hidden_layers=1,
    )


def _fill(layer, tp, config: LatentMoEConfig, weights) -> None:
    parameters = dict(layer.named_parameters())
    wanted = {name for name, value in _shards(tp, config, weights)}
    for name, value in _shards(tp, config, weights):
        parameters[name].data.copy_(value)
    left = {name for name in parameters if not name.startswith("experts.")} - wanted
    if left:
        raise RuntimeError(f"vLLM's layer has parameters that this oracle does not fill: {sorted(left)}")


def _shards(tp, config, weights):
    """vLLM's parameter names and this rank's values."""
    for name in ("gate.weight", "gate.e_score_correction_bias", "routed_expert_down_proj.weight"):
        yield name, weights[name]
    if config.latent_norm:
        yield "routed_expert_norm.weight", weights["routed_expert_norm.weight"]
    piece = (tp.rank, tp.size)
    yield "routed_expert_up_proj.weight", shard(weights, "routed_expert_up_proj.weight", *piece)
    pair = [shard(weights, f"shared_experts.{name}.weight", *piece) for name in ("gate_proj", "up_proj")]
    yield "shared_experts.gate_up_proj.weight", torch.cat(pair)
    yield "shared_experts.down_proj.weight", shard(weights, "shared_experts.down_proj.weight", *piece)
    each = range(config.num_experts)
    w = {(e, n): shard(weights, f"experts.{e}.{n}.weight", *piece) for e in each for n in ("w1", "w3", "w2")}
    yield (
        "experts.routed_experts.w13_weight",
        torch.stack([torch.cat([w[e, "w1"], w[e, "w3"]]) for e in each]),
    )
    yield "experts.routed_experts.w2_weight", torch.stack([w[e, "w2"] for e in each])
