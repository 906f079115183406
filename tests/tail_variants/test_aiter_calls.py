"""Our calls of aiter against the signatures that its published wheel has; nothing is downloaded or imported of it.

Stand-ins with exactly those signatures take the calls and do the arithmetic with torch: a call that the real
function would not accept fails here too, and so does a tail that puts the pieces together wrongly.
"""

import importlib.util
import inspect
import json
import os
import sys
import types
from pathlib import Path

import pytest
import torch
from torch.nn.functional import linear, rms_norm

from latent_moe.config import TINY
from latent_moe.errors import InputError
from latent_moe.layer import LatentMoE
from latent_moe.parallel import TensorParallel
from latent_moe.runner import ROCmLatentMoERunner
from latent_moe.tail_variants import aiter as choice
from latent_moe.tails import RMSNorm, column_parallel
from latent_moe.weights import SeededWeights

HERE = Path(__file__).parent
PUBLISHED = json.loads((HERE / "signatures.json").read_text())


def signature_of(key: str) -> inspect.Signature:
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Signature(
        inspect.Parameter(
            each["name"],
            kind,
            default=inspect.Parameter.empty if each["default"] is None else each["default"],
        )
        for each in PUBLISHED["functions"][key]
    )


class StandIns:
    """Modules named as aiter's, whose functions bind what they are given to the published signatures."""

    def __init__(self):
        self.bound = []

    def rmsnorm2d_fwd(self, *args, **kwargs):
        given = self._bind("aiter/ops/rmsnorm.py:rmsnorm2d_fwd", args, kwargs)
        x, weight = given["input"], given["weight"]
        return rms_norm(x, (x.shape[-1],), weight, given["epsilon"])

    def mm(self, *args, **kwargs):
        given = self._bind("aiter/tuned_gemm.py:TunedGemm.mm", (self, *args), kwargs)
        assert given["inp"].dim() == 2
        assert given["inp"].is_contiguous()
        assert given["weights"].is_contiguous()
        return linear(given["inp"], given["weights"])

    def _bind(self, key, args, kwargs):
        given = signature_of(key).bind(*args, **kwargs).arguments
        self.bound.append(key)
        return given


@pytest.fixture
def stand_ins(monkeypatch):
    stand_ins = StandIns()
    modules = {
        name: types.ModuleType(name)
        for name in ("aiter", "aiter.ops", "aiter.ops.rmsnorm", "aiter.tuned_gemm")
    }
    modules["aiter.ops.rmsnorm"].rmsnorm2d_fwd = stand_ins.rmsnorm2d_fwd
    modules["aiter.tuned_gemm"].tgemm = stand_ins
    for name, module in modules.items():
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(torch.version, "hip", "7.0")
    return stand_ins


def case(tokens=5, hidden=48, latent=32, tp=4):
    generator = torch.Generator().manual_seed(3)

    def draw(*shape):
        return torch.randn(*shape, generator=generator)

    norm = RMSNorm(latent, 1e-5)
    norm.weight.data.copy_(draw(latent))
    return draw(tokens, latent), draw(tokens, hidden), draw(hidden // tp, latent), norm


class Alone(TensorParallel):
    """Rank 1 of four, collectives left out: the columns and the arithmetic are what is looked at."""

    def all_reduce(self, x, async_op=False):
        return x


@pytest.mark.parametrize("with_norm", [True, False])
def test_calls_bind_and_only_the_own_columns_change(stand_ins, with_norm):
    routed, shared, weight, norm = case()
    norm = norm if with_norm else None
    out = column_parallel(routed, shared.clone(), weight, norm, Alone(1, 4), kernels="aiter")
    wide = routed.double()
    if with_norm:
        wide = wide / (wide.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * norm.weight.double()
    expected = shared.double()
    expected[:, 12:24] += wide @ weight.double().t()
    assert torch.equal(out[:, :12], shared[:, :12])
    assert torch.equal(out[:, 24:], shared[:, 24:])
    assert ((out.double() - expected).norm() / expected.norm()).item() <= 1e-6
    calls = ["aiter/ops/rmsnorm.py:rmsnorm2d_fwd"] if with_norm else []
    assert stand_ins.bound == [*calls, "aiter/tuned_gemm.py:TunedGemm.mm"]


def test_a_call_of_another_shape_would_fail():
    norm = signature_of("aiter/ops/rmsnorm.py:rmsnorm2d_fwd")
    with pytest.raises(TypeError, match="epsilon"):
        norm.bind(1, 2)
    with pytest.raises(TypeError, match="eps"):
        norm.bind(1, 2, eps=3)


def test_the_instance_we_import_is_of_the_class_we_bind():
    assert PUBLISHED["instances"] == {"aiter/tuned_gemm.py:tgemm": "TunedGemm"}
    assert PUBLISHED["version"]


def test_one_switch_of_the_runner(stand_ins, monkeypatch):
    arguments = {"tail": "column_parallel", "kernels": "aiter"}
    group = Alone(0, 2)
    layer = LatentMoE(
        TINY, group, SeededWeights(TINY, 1), runner_cls=ROCmLatentMoERunner, runner_args=arguments
    )
    x = torch.randn(3, TINY.hidden_size, generator=torch.Generator().manual_seed(1))
    theirs = layer(x)
    assert layer.runner.last.tail == "column_parallel"
    assert stand_ins.bound[-1].endswith("TunedGemm.mm")
    arguments["kernels"] = "torch"
    before = len(stand_ins.bound)
    ours = LatentMoE(
        TINY, group, SeededWeights(TINY, 1), runner_cls=ROCmLatentMoERunner, runner_args=arguments
    )(x)
    assert len(stand_ins.bound) == before
    assert ((theirs - ours).norm() / ours.norm()).item() <= 1e-6


def test_refused_where_it_cannot_run(monkeypatch):
    monkeypatch.setattr(torch.version, "hip", None)
    with pytest.raises(InputError, match="need ROCm"):
        choice.check_kernels("aiter")
    monkeypatch.setattr(torch.version, "hip", "7.0")
    monkeypatch.setattr(choice, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="not installed"):
        choice.check_kernels("aiter")
    with pytest.raises(InputError, match=r"unknown kernels 'cublas' \(there are: torch, aiter\)"):
        choice.check_kernels("cublas")


def test_fixture_is_what_a_wheel_at_hand_says():
    wheel = os.environ.get("LATENT_MOE_AITER_WHEEL")
    if not wheel:
        pytest.skip("LATENT_MOE_AITER_WHEEL names no amd-aiter wheel to compare with")
    spec = importlib.util.spec_from_file_location("make_signatures", HERE / "make_signatures.py")
    maker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(maker)
    assert maker.signatures(wheel)["functions"] == PUBLISHED["functions"]
