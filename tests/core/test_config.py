"""LatentMoEConfig: what it accepts, what it refuses, what config.json gives."""

import json

import pytest

from latent_moe.config import DEMO, KIMI_K3, TINY, from_hf, preset, to_hf
from latent_moe.errors import InputError

K3_JSON = {
    "hidden_size": 7168,
    "routed_expert_hidden_size": 3584,
    "num_experts": 896,
    "num_experts_per_token": 16,
    "moe_intermediate_size": 3072,
    "num_shared_experts": 2,
    "num_hidden_layers": 93,
    "first_k_dense_replace": 1,
    "latent_moe_use_norm": True,
    "rms_norm_eps": 1e-5,
    "hidden_act": "situ",
    "activation_situ_beta": 4.0,
    "activation_situ_linear_beta": 25.0,
    "routed_scaling_factor": 1.0,
}


def test_published_config_is_the_preset():
    assert from_hf(K3_JSON) == KIMI_K3
    assert from_hf({"text_config": K3_JSON}) == KIMI_K3


@pytest.mark.parametrize("config", [TINY, DEMO, KIMI_K3, TINY.replace(activation="silu", latent_norm=False)])
def test_round_trip(config, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(to_hf(config)))
    assert from_hf(tmp_path) == config
    assert from_hf(tmp_path / "config.json") == config


@pytest.mark.parametrize("key", ["routed_expert_hidden_size", "num_experts", "hidden_size"])
def test_missing_field_is_named(key, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({name: value for name, value in K3_JSON.items() if name != key}))
    with pytest.raises(InputError, match=f"config.json: no latent MoE .*{key}"):
        from_hf(path)


@pytest.mark.parametrize("text", ["", "[1]", "{", "\x00"])
def test_unreadable_file(text, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"config\.json"):
        from_hf(path)


def test_absent_folder(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        from_hf(tmp_path / "nothing")


@pytest.mark.parametrize(
    "change",
    [
        {"hidden_size": 0},
        {"hidden_size": 7168.0},
        {"hidden_size": True},
        {"latent_size": -1},
        {"num_experts": 1},
        {"activation": "gelu"},
        {"norm_eps": 0.0},
        {"norm_eps": float("nan")},
        {"situ_beta": "4"},
        {"routed_scaling_factor": float("inf")},
        {"shared_width": -64},
        {"sequence_parallel": 1},
        {"moe_tp_size": 0},
        {"no_such_field": 1},
    ],
)
def test_impossible_sizes(change):
    with pytest.raises(InputError, match=next(iter(change)).split("_")[0]):
        TINY.replace(**change)


@pytest.mark.parametrize(
    "bad", [{"num_shared_experts": "two"}, {"num_hidden_layers": -3}, {"hidden_size": "big"}]
)
def test_wrong_types_in_config_json(bad):
    with pytest.raises(InputError, match=next(iter(bad))):
        from_hf(K3_JSON | bad)


def test_unknown_preset_names_the_known():
    with pytest.raises(InputError, match=r"unknown preset 'k2' .*tiny, demo, kimi-k3"):
        preset("k2")


@pytest.mark.parametrize(
    ("config", "tp", "message"),
    [
        (TINY, 3, "expert width 32"),
        (TINY.replace(shared_width=68), 8, "shared experts' width 68"),
        (TINY, 0, "tp 0"),
        (TINY.replace(moe_tp_size=2), 4, "moe_tp_size 2"),
        (TINY.replace(moe_tp_size=1, num_experts=6), 4, "number of experts 6"),
    ],
)
def test_tp_that_does_not_divide(config, tp, message):
    with pytest.raises(InputError, match=message):
        config.check_tp(tp)


def test_scaling_belongs_to_router_unless_said():
    assert TINY.replace(routed_scaling_factor=2.5).runner_scale == 1.0
    assert TINY.replace(routed_scaling_factor=2.5, scale_routed_output=True).runner_scale == 2.5
