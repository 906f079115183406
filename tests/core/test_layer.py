"""The layer: one full state dict, any number of ranks, one result; checkpoints on disk."""

import core_ranks
import pytest
import torch
from core_ranks import SEED, x_for

from latent_moe.config import TINY
from latent_moe.errors import InputError
from latent_moe.layer import Gate, LatentMoE, Router, glu, save_random_model
from latent_moe.parallel import TensorParallel, launch
from latent_moe.runner import ROCmLatentMoERunner
from latent_moe.verify import reference, relative_error
from latent_moe.weights import SeededWeights, load, save, shard, tensor_shapes

CASES = {
    "situ": TINY,
    "silu": TINY.replace(activation="silu"),
    "no_norm": TINY.replace(latent_norm=False),
    "no_shared": TINY.replace(shared_width=0),
    "not_latent": TINY.replace(latent_size=None),
    "router_scale": TINY.replace(routed_scaling_factor=2.5),
    "runner_scale": TINY.replace(routed_scaling_factor=2.5, scale_routed_output=True, latent_norm=False),
    "expert_parallel": TINY.replace(moe_tp_size=1),
    "one_expert": TINY.replace(num_experts=8, experts_per_token=1),
    "all_experts": TINY.replace(experts_per_token=8),
}


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_every_kind_of_layer_against_float64(tp):
    cases = {name: (config, None, None) for name, config in CASES.items()}
    ranks = launch(core_ranks.layers, tp, cases)
    for name, config in CASES.items():
        expected = reference(config, SeededWeights(config, SEED), x_for(config))
        for rank in ranks:
            assert relative_error(rank[name]["out"], expected) <= 1e-5, name


def test_a_rank_holds_its_share():
    cases = {"width": (TINY, None, None), "whole": (TINY.replace(moe_tp_size=1), None, None)}
    for number, rank in enumerate(launch(core_ranks.layers, 4, cases)):
        assert rank["width"]["expert_shapes"] == ((8, 2, 8, 32), 0)
        assert rank["whole"]["expert_shapes"] == ((2, 2, 32, 32), 2 * number)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 8])
def test_seeded_shards_are_parts_of_the_whole(count):
    config = TINY.replace(expert_width=96, shared_width=24)
    weights = SeededWeights(config, 5)
    plain = dict(weights)
    for name in ("experts.3.w1.weight", "experts.3.w2.weight", "shared_experts.down_proj.weight"):
        parts = [shard(weights, name, index, count) for index in range(count)]
        dim = 1 if "w2" in name or "down" in name else 0
        assert torch.equal(torch.cat(parts, dim), plain[name])
        assert all(torch.equal(shard(plain, name, i, count), part) for i, part in enumerate(parts))


def test_seeds_differ_and_repeat():
    one, same, other = SeededWeights(TINY, 1), SeededWeights(TINY, 1), SeededWeights(TINY, 2)
    assert torch.equal(one["gate.weight"], same["gate.weight"])
    assert not torch.equal(one["gate.weight"], other["gate.weight"])
    assert not torch.equal(one["experts.0.w1.weight"], one["experts.1.w1.weight"])


def test_router_bias_steers_the_choice_only():
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]])
    config = TINY.replace(num_experts=4, experts_per_token=2)
    gate = Gate(torch.zeros(4, 64), torch.tensor([0.0, 0.0, 0.0, 1.0]))
    weights, ids = Router(config, gate)(logits)
    scores = torch.sigmoid(torch.tensor([-1.0, 2.0]))
    assert ids.tolist() == [[3, 0]]
    torch.testing.assert_close(weights, (scores / scores.sum())[None])
    assert weights.dtype == torch.float32


def test_situ_is_its_formula_and_is_bounded():
    gate, up = torch.tensor([-3.0, 0.5, 1e4]), torch.tensor([2.0, -40.0, 1e4])
    g, u = gate.double(), up.double()
    expected = 4 * torch.tanh(g / 4) * torch.sigmoid(g) * 25 * torch.tanh(u / 25)
    torch.testing.assert_close(glu(gate, up, TINY).double(), expected, rtol=1e-6, atol=1e-6)
    assert glu(gate, up, TINY)[-1] == 100.0


@pytest.mark.parametrize("name", list(tensor_shapes(TINY))[:6])
def test_a_missing_or_misshapen_tensor_is_named(name):
    weights = dict(SeededWeights(TINY, 0))
    weights[name] = weights[name][..., :-1]
    with pytest.raises(InputError, match=f"{name} has shape"):
        LatentMoE(TINY, TensorParallel.single(), weights)
    del weights[name]
    with pytest.raises(InputError, match=f"lacks {name}"):
        LatentMoE(TINY, TensorParallel.single(), weights)


@pytest.mark.parametrize("runner_cls", [None, ROCmLatentMoERunner])
def test_checkpoint_gives_the_same_logits_on_one_two_and_four_ranks(runner_cls, tmp_path):
    config = TINY.replace(num_layers=2)
    save_random_model(tmp_path, config, vocab_size=50, seed=3)
    assert load(tmp_path).config == config
    expected = launch(core_ranks.logits, 1, str(tmp_path), None)[0]
    assert expected.shape == (7, 50)
    for tp in (2, 4):
        for logits in launch(core_ranks.logits, tp, str(tmp_path), runner_cls):
            assert relative_error(logits, expected) <= 1e-5


def test_checkpoint_holds_what_was_saved(tmp_path):
    save(tmp_path, TINY, [SeededWeights(TINY, 4)], {"lm_head.weight": torch.ones(3, 64)}, {"vocab_size": 3})
    layer, wanted = load(tmp_path).layer(0), SeededWeights(TINY, 4)
    assert set(layer) == set(wanted)
    assert all(torch.equal(layer[name], wanted[name]) for name in wanted)
    piece = shard(layer, "experts.1.w2.weight", 1, 4)
    assert torch.equal(piece, shard(wanted, "experts.1.w2.weight", 1, 4))


def test_bad_checkpoints(tmp_path):
    with pytest.raises(InputError, match=r"no model\.safetensors"):
        load(tmp_path)
    save(tmp_path, TINY, [SeededWeights(TINY, 4)])
    with pytest.raises(InputError, match="2 layers given"):
        save(tmp_path, TINY, [SeededWeights(TINY, 4)] * 2)
    (tmp_path / "model.safetensors").write_bytes(b"not a checkpoint")
    with pytest.raises(InputError, match=r"model\.safetensors: cannot be read"):
        load(tmp_path)
