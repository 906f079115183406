"""A vLLM whose runner interface is not known is refused by version and by what it lacks, never guessed at."""

import sys
from types import ModuleType

import pytest

from latent_moe.errors import InputError
from latent_moe.vllm_plugin import interface


class Runner:
    """The members and the signature that the tails' runner is built on."""

    _encode_layer_name = _fused_output_is_reduced = _maybe_add_zero_expert_output = None
    _maybe_pad_hidden_states = _quant_method = _select_forward = apply_routed_input_transform = None

    def forward(self, hidden_states, router_logits, input_ids=None, shared_experts_input=None):
        pass


class OtherForward(Runner):
    def forward(self, x, router_logits):
        pass


members = {name: value for name, value in vars(Runner).items() if name != "_maybe_pad_hidden_states"}
NoPadding = type("NoPadding", (), members)


def factory(runner_cls, routed_input_transform, routed_output_transform, shared_experts):
    pass


def older_factory(runner_cls, shared_experts):
    pass


@pytest.fixture
def vllm(monkeypatch):
    """Puts a vLLM with this factory and this runner in the place of the installed one; `version` is what it says."""

    def put(version: str, factory, runner) -> None:
        names = ["vllm", "model_executor", "layers", "fused_moe", "runner", "moe_runner"]
        modules = {".".join(names[: end + 1]): ModuleType(names[end]) for end in range(len(names))}
        fused = modules["vllm.model_executor.layers.fused_moe"]
        modules["vllm.model_executor.layers"].fused_moe = fused
        if factory is not None:
            fused.FusedMoEFactory = factory
        if runner is not None:
            modules[".".join(names)].MoERunner = runner
        for name, module in modules.items():
            monkeypatch.setitem(sys.modules, name, module)
        monkeypatch.setattr(interface, "_version", lambda: version)

    return put


@pytest.mark.parametrize(
    ("made_of", "runner", "lacks"),
    [
        (factory, None, "no runner interface that is known here"),
        (factory, NoPadding, "MoERunner._maybe_pad_hidden_states"),
        (factory, OtherForward, "MoERunner.forward(hidden_states, router_logits, input_ids)"),
        (
            older_factory,
            Runner,
            "the factory's routed_input_transform, the factory's routed_output_transform",
        ),
        (None, Runner, "a FusedMoEFactory or FusedMoE function"),
        (Runner, Runner, "a FusedMoEFactory or FusedMoE function"),
    ],
)
def test_an_unknown_interface_is_refused_by_version_and_by_what_it_lacks(vllm, made_of, runner, lacks):
    vllm("0.41.7", made_of, runner)
    with pytest.raises(InputError, match=r"^vLLM 0\.41\.7: ") as caught:
        interface.interface()
    assert lacks in str(caught.value)


@pytest.mark.parametrize(("version", "tried"), [("0.26.0", True), ("0.32.0", True), ("0.41.7", False)])
def test_a_known_interface_runs_and_says_whether_that_version_was_tried(vllm, version, tried):
    vllm(version, factory, Runner)
    found = interface.interface()
    assert (found.version, found.tried, found.reduces_before_transform) == (version, tried, False)
    with pytest.raises(InputError, match="no SiTU activation"):
        found.situ_arguments(4.0, 25.0)


@pytest.mark.vllm
def test_the_installed_vllm_is_known():
    pytest.importorskip("vllm")
    found = interface.interface()
    assert found.tried
    assert found.situ_arguments(4.0, 25.0)["activation_situ_beta"] == 4.0
