"""The norm's gain folded into the up-projection: the same tail, once, and only where a tail gains by it."""

import pytest
import torch

from latent_moe.config import TINY
from latent_moe.parallel import TensorParallel
from latent_moe.runner import MoERunner, ROCmLatentMoERunner, folds_gain
from latent_moe.tails import RMSNorm, apply_norm, fold_gain
from latent_moe.vllm_plugin.choice import UpProjectionWeight, keep_after_loading


def draw(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def norm_of(size, dtype=torch.float32):
    norm = RMSNorm(size, 1e-5, dtype)
    norm.weight.copy_(1 + draw(size, seed=1) / 4)
    return norm


def test_the_same_product_and_only_once():
    x, weight, norm = draw(5, 48, seed=2), draw(32, 48, seed=3), norm_of(48)
    expected = apply_norm(norm, x) @ weight.t()
    assert torch.equal(norm.gain, norm.weight)
    for _ in range(2):
        fold_gain(weight, norm)
        assert norm.gain is None
        torch.testing.assert_close(apply_norm(norm, x) @ weight.t(), expected, rtol=1e-5, atol=1e-5)


def test_bf16_is_rounded_once():
    weight, norm = draw(32, 48, seed=3).bfloat16(), norm_of(48, torch.bfloat16)
    expected = (weight.double() * norm.weight.double()).to(torch.bfloat16)
    fold_gain(weight, norm)
    assert torch.equal(weight, expected)


def test_nothing_to_fold():
    weight = draw(4, 8, seed=1)
    fold_gain(weight, None)
    assert torch.equal(weight, draw(4, 8, seed=1))


@pytest.mark.parametrize("asked", ["column_parallel", "replicated", "fused", "auto"])
def test_folded_only_where_fused_can_run(asked, monkeypatch):
    config = TINY.replace(hidden_size=64, latent_size=48)
    gains = asked in ("fused", "auto")
    assert folds_gain(asked, config, 2) is False  # no GPU, no interpreter
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert folds_gain(asked, config, 2) is gains
    assert folds_gain(asked, config, 1) is False
    assert ROCmLatentMoERunner.folds_gain(config, 2, tail=asked) is gains
    assert MoERunner.folds_gain(config, 2) is False


class Loaded(torch.nn.Module):
    """A linear layer as the server holds it: a weight, and a method that repacks it after loading."""

    def __init__(self, weight):
        super().__init__()
        self.weight = torch.nn.Parameter(weight, requires_grad=False)
        self.repacked = []
        self.quant_method = self

    def process_weights_after_loading(self, layer):
        self.repacked.append(layer.weight.data.clone())


def test_a_server_folds_when_weights_are_loaded_and_when_they_are_loaded_again():
    norm, raw = norm_of(48), draw(32, 48, seed=3)
    gain, layer = norm.weight.clone(), Loaded(raw.clone())
    kept = UpProjectionWeight(layer, TensorParallel.single(), own_rows_only=False)
    keep_after_loading(layer, kept, whole=True, fold_from=norm)
    for _ in range(2):
        layer.weight.data.copy_(raw)
        norm.weight.copy_(gain)
        layer.quant_method.process_weights_after_loading(layer)
        assert norm.gain is None
        torch.testing.assert_close(kept.all, raw * gain)
        torch.testing.assert_close(layer.repacked[-1], raw * gain)


def test_a_quantised_weight_stays_as_it_is():
    norm, layer = norm_of(48), Loaded(draw(32, 48, seed=3).to(torch.float8_e4m3fn))
    before = layer.weight.data.clone()
    kept = UpProjectionWeight(layer, TensorParallel.single(), own_rows_only=False)
    keep_after_loading(layer, kept, whole=True, fold_from=norm)
    layer.quant_method.process_weights_after_loading(layer)
    assert torch.equal(kept.all.float(), before.float())
    assert norm.gain is not None
