"""vLLM's own Kimi-K3 layer for AMD with this package's runner: built from vLLM's module, on two real ranks.

T tokens, H hidden, L latent, tp ranks.
"""

import logging
import os
from contextlib import ExitStack
from types import SimpleNamespace

import pytest
import torch

from latent_moe.config import KIMI_K3
from latent_moe.errors import InputError
from latent_moe.parallel import launch
from latent_moe.verify import oracle
from latent_moe.verify.oracle import CONFIG
from latent_moe.verify.reference import inputs, relative_error
from latent_moe.vllm_plugin import register as plugin
from latent_moe.weights import SeededWeights

pytestmark = pytest.mark.vllm
TOKENS, SEED, TP = 24, 3, 2
H, L = CONFIG.hidden_size, CONFIG.latent_size
WHOLE, OWN = H * L * 4, H * L * 4 // TP


def _loaded(tp, weights):
    """vLLM's layer, filled with this rank's shards, after vLLM's own processing of loaded weights."""
    from vllm.models.kimi_k3.amd.linear import KimiMoE

    layer = KimiMoE(oracle._kimi_config(CONFIG), prefix="model.layers.0.block_sparse_moe")
    oracle._fill(layer, tp, CONFIG, weights)
    rows = layer.routed_expert_up_proj.weight.shape[0]
    for module in layer.modules():
        method = getattr(module, "quant_method", None)
        if hasattr(method, "process_weights_after_loading"):
            method.process_weights_after_loading(module)
    return layer, rows


def _facts(layer, rows: int, out: torch.Tensor, expected: dict, said: list[str]) -> dict:
    weight = layer.experts._up_weight
    return {
        "class": type(layer.experts).__name__,
        "loaded_rows": rows,
        "rows_at_hand": {"own": weight.own.shape[0], "all": None if weight._whole is None else H},
        "one_storage": weight._whole is not None
        and weight.own.untyped_storage().data_ptr() == weight.all.untyped_storage().data_ptr(),
        "error": relative_error(out, expected["baseline"]),
        "error_of_theirs": relative_error(expected["sharded_tail"], expected["baseline"]),
        "said": said,
    }


def tail_of_k3(tp, tail: str) -> dict:
    """Runs on each rank: vLLM's layer with vLLM's runner, then with ours, same weights, same x [T, H]."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "LATENT_MOE_TAIL": tail}
    os.environ["TORCHDYNAMO_DISABLE"] = "1"  # a C++ compiler stumbles over a space in the checkout's path
    weights = SeededWeights(CONFIG, SEED)
    x = inputs(CONFIG, weights, TOKENS, SEED, [torch.float32])
    said: list[str] = []
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.forward_context import set_forward_context

    config = VllmConfig()
    config.parallel_config.tensor_parallel_size = tp.size
    with ExitStack() as stack, torch.no_grad():
        stack.enter_context(set_current_vllm_config(config))
        oracle._join_vllm(tp, stack)
        theirs = oracle._vllm_layer(tp, CONFIG, weights)
        config.compilation_config.static_forward_context.clear()
        _listen(said)
        plugin.give_runner()
        plugin.give_runner()  # vLLM may load its plugins more than once in a process
        ours, rows = _loaded(tp, weights)
        with set_forward_context(None, config):
            out = ours(x.clone()).clone()
        config.compilation_config.static_forward_context.clear()
        config.compilation_config.static_forward_context["model.layers.0.block_sparse_moe.experts"] = (
            theirs.experts
        )
        with set_forward_context(None, config):
            expected = oracle._run(theirs, x)
        return _facts(ours, rows, out, expected, said)


def _listen(said: list[str]) -> None:
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logger = logging.getLogger("vllm.latent_moe")
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)


@pytest.fixture(scope="module")
def ranks_of():
    """tail -> what each rank found."""
    pytest.importorskip("vllm.models.kimi_k3.amd.linear")
    return lambda tail: launch(tail_of_k3, TP, tail, timeout_s=200, backend="gloo")


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "tail",
    [
        "replicated",
        pytest.param("column_parallel", marks=pytest.mark.slow),
        pytest.param("overlap", marks=pytest.mark.slow),
        pytest.param("joint", marks=pytest.mark.slow),
        pytest.param("row_parallel", marks=pytest.mark.slow),
    ],
)
def test_vllms_layer_with_our_runner_says_what_vllm_says(ranks_of, tail):
    for rank, found in enumerate(ranks_of(tail)):
        assert found["class"] == "TailRunner"
        assert found["loaded_rows"] == H // TP, "0.32 keeps only this rank's rows"
        assert found["error_of_theirs"] < 1e-5
        assert found["error"] < 1e-5
        assert found["rows_at_hand"]["own"] == H // TP
        said = " / ".join(found["said"])
        assert "takes the runner of this package" in said
        if tail == "column_parallel":
            assert found["rows_at_hand"]["all"] is None, "nothing to gather for a sharded tail"
            assert "gathered" not in said
        else:
            assert found["rows_at_hand"]["all"] == H
            assert found["one_storage"], "this rank's rows are not held twice"
            assert f"gathered, {WHOLE - OWN} bytes more on this rank" in said
        if rank == 0:
            shape = f"N={H // TP}" if tail == "column_parallel" else f"N={H}"
            assert f"tail {tail} ran the up-projection GEMM M=T {shape} K={L}" in said


def test_all_rows_of_kimi_k3_are_4_gigabytes_more_a_rank():
    """What the log adds up to at tp 8: 92 layers, bf16, 7/8 of the rows each."""
    extra = 92 * KIMI_K3.hidden_size * KIMI_K3.latent_size * 2 * 7 // 8
    assert round(extra / 1e9, 1) == 4.1


def linear_module(**changes):
    """vLLM's module as far as it is looked at, with what it must have."""

    class Transform:
        def __init__(self, norm, up_proj, row_sharded=False):
            pass

    class Layer:
        def __init__(self):
            self.experts = factory(runner_cls=ROCmLatentMoERunner)  # noqa: F821

    names = {
        "ROCmLatentMoERunner": type("R", (), {}),
        "KimiMoE": Layer,
        "KimiRoutedOutputTransform": Transform,
    }
    return SimpleNamespace(**(names | changes))


def factory(**_):
    return None


class OtherName:
    def __init__(self):
        self.experts = factory(runner_cls=LatentRunner)  # noqa: F821


class OtherArgument:
    def __init__(self):
        self.experts = factory(runner=ROCmLatentMoERunner)  # noqa: F821


@pytest.mark.parametrize(
    ("changes", "lacks"),
    [
        ({"ROCmLatentMoERunner": None}, "a class ROCmLatentMoERunner"),
        ({"KimiMoE": None}, "a class KimiMoE"),
        ({"KimiMoE": OtherName}, "KimiMoE building its experts with ROCmLatentMoERunner"),
        ({"KimiMoE": OtherArgument}, "KimiMoE passing runner_cls"),
        ({"KimiRoutedOutputTransform": None}, "a class KimiRoutedOutputTransform"),
        ({"KimiRoutedOutputTransform": SimpleNamespace}, "a class KimiRoutedOutputTransform"),
        ({"KimiRoutedOutputTransform": OtherName}, "KimiRoutedOutputTransform(norm)"),
    ],
)
def test_what_an_unknown_vllm_lacks_is_named(changes, lacks):
    if changes.get("KimiRoutedOutputTransform") is SimpleNamespace:
        changes = {"KimiRoutedOutputTransform": SimpleNamespace()}
    assert lacks in plugin.missing(linear_module(**changes))


def test_the_installed_vllm_is_one_we_know():
    linear = pytest.importorskip("vllm.models.kimi_k3.amd.linear")
    assert plugin.missing(linear) == []
    assert plugin.missing(linear_module()) == []


def test_an_unknown_interface_is_refused_with_vllms_version(monkeypatch):
    linear = pytest.importorskip("vllm.models.kimi_k3.amd.linear")
    monkeypatch.setattr(linear, "KimiMoE", OtherName)
    before = linear.ROCmLatentMoERunner
    with pytest.raises(InputError, match=r"vLLM 0\.32\S*: its Kimi-K3 .* KimiMoE building its experts"):
        plugin.give_runner()
    assert linear.ROCmLatentMoERunner is before
