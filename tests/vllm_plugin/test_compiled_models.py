"""torch.compile and the tails: what must not be traced is not, and vLLM keeps the compiled models of two tails apart."""

from types import SimpleNamespace

import pytest
import torch

from latent_moe.config import TINY
from latent_moe.errors import InputError
from latent_moe.lab.cost.auto_tail import choose, register_with_vllm
from latent_moe.parallel import TensorParallel
from latent_moe.tail_variants.registry import TAILS
from latent_moe.vllm_plugin import choice, custom_op
from latent_moe.vllm_plugin.choice import TailChoice


def by_length(routed: torch.Tensor, shared: torch.Tensor) -> torch.Tensor:
    """Decides by T, as `auto` does; in place or not."""
    routed.mul_(2)
    if routed.shape[0] % 2:
        return shared.add_(routed.sum())
    return shared * routed.shape[0]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_tail_behind_the_operator_decides_anew_at_every_length(backend):
    custom_op.register("layer.0", by_length)
    layer = lambda routed, shared: custom_op.end_layer("layer.0", routed + 0, shared + 0) * 3  # noqa: E731
    compiled = torch.compile(layer, backend=backend, fullgraph=True, dynamic=True)
    for tokens in (8, 5, 6, 1):
        routed, shared = torch.randn(tokens, 4), torch.randn(tokens, 6)
        assert torch.equal(compiled(routed, shared), by_length(routed.clone(), shared.clone()) * 3)


def test_a_layer_is_ended_by_what_was_registered_last():
    custom_op.register("layer.1", lambda routed, shared: shared)
    custom_op.register("layer.1", lambda routed, shared: shared + 1)
    assert torch.equal(custom_op.end_layer("layer.1", torch.zeros(2, 1), torch.zeros(2, 3)), torch.ones(2, 3))


def test_only_tails_without_a_decision_are_traced():
    assert {name for name, tail in TAILS.items() if tail.traceable} == {
        "replicated",
        "column_parallel",
        "joint",
    }


@pytest.mark.parametrize("name", [name for name, tail in TAILS.items() if tail.traceable])
def test_torch_compile_traces_such_a_tail_in_one_graph(name):
    single, whole = TensorParallel.single(), torch.randn(6, 4)
    weight = SimpleNamespace(all=whole, own=whole, hidden_size=6)
    chosen = choice.TailChoice(name, TINY, 1)

    def end(routed, shared):
        assert chosen.traceable
        return chosen.run(routed + 0, shared + 0, weight, None, single)

    compiled = torch.compile(end, backend="eager", fullgraph=True, dynamic=True)
    for tokens in (8, 5, 1):
        routed, shared = torch.randn(tokens, 4), torch.randn(tokens, 6)
        torch.testing.assert_close(compiled(routed, shared), shared + routed @ whole.t())


def test_a_tail_that_this_machine_cannot_run_is_refused_when_the_model_is_built():
    moe = {
        "num_logical_experts": 8,
        "experts_per_token": 2,
        "intermediate_size_per_partition": 64,
        "tp_size": 2,
    }
    moe |= {"skip_final_all_reduce": False, "is_sequence_parallel": False}
    layer = SimpleNamespace(
        moe_config=SimpleNamespace(**moe), routed_scaling_factor=1.0, shared_experts=object()
    )
    weight = SimpleNamespace(hidden_size=128, latent_size=64, dtype=torch.float32)
    chosen = {tail: TailChoice.of_layer(tail, layer, weight, SimpleNamespace(size=2)) for tail in TAILS}
    for tail in ("fused", "early_weights", "one_launch"):
        assert "does not take float32" in chosen.pop(tail).reason
    assert {tail: choice.reason for tail, choice in chosen.items()} == dict.fromkeys(chosen)


def test_auto_is_refused_until_something_that_chooses_is_handed_over(monkeypatch):
    monkeypatch.setattr(choice, "_choosers", [])
    monkeypatch.setenv("LATENT_MOE_TAIL", "auto")
    with pytest.raises(InputError, match="without what chooses"):
        choice.asked_tail()
    choice.hand_over(lambda tokens, config, tp: ("overlap" if tokens < 8 else "column_parallel", "by length"))
    assert choice.asked_tail() == "auto"
    single, weight = TensorParallel.single(), SimpleNamespace(all=torch.ones(6, 4), own=torch.ones(6, 4))
    weight.hidden_size = 6
    chosen = choice.TailChoice("auto", TINY, 1)
    for tokens in (1, 9):
        out = chosen.run(torch.ones(tokens, 4), torch.ones(tokens, 6), weight, None, single)
        assert torch.equal(out, torch.full((tokens, 6), 5.0))


@pytest.mark.vllm
def test_the_entry_point_of_vllm_hands_the_automatic_choice_over(monkeypatch):
    pytest.importorskip("vllm")
    monkeypatch.setattr(choice, "_choosers", [])
    register_with_vllm()
    assert choice._choosers == [choose]


@pytest.mark.vllm
def test_vllm_keeps_the_compiled_models_of_two_tails_apart(monkeypatch):
    pytest.importorskip("vllm")
    from vllm import envs

    from latent_moe.vllm_plugin.register import TAIL_VARIABLE, register

    register()
    factors = []
    for tail in ("replicated", "column_parallel"):
        monkeypatch.setenv(TAIL_VARIABLE, tail)
        factors.append(envs.compile_factors())
    assert factors[0] != factors[1]
