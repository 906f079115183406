"""vLLM's own ROCmLatentMoERunner with the same weights at tp = 2."""

from importlib.util import find_spec

import pytest

from latent_moe.errors import LatentMoEError
from latent_moe.verify import oracle


@pytest.mark.vllm
@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")
def test_both_tails_agree_with_vllms_own_runner():
    answer = oracle.ask_vllm(seed=23)
    assert answer["reason"] is None
    assert answer["class"] == "vllm.models.kimi_k3.amd.latent_moe_runner.ROCmLatentMoERunner"
    assert answer["sharded"]
    assert 0 < answer["rel_err"] <= 1e-5
    assert 0 < answer["baseline_rel_err"] <= 1e-5
    assert answer["ok"]


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        (None, "vLLM is not installed here"),
        ("0.11.2", "vLLM 0.11.2 is not a version this oracle knows (0.32)"),
    ],
)
def test_absent_or_unknown_vllm_is_one_line(version, reason, monkeypatch):
    class Here:
        vllm_version = version

    monkeypatch.setattr(oracle, "describe", Here)
    answer = oracle.ask_vllm(seed=1)
    assert (answer["ok"], answer["rel_err"], answer["reason"]) == (False, None, reason)


def test_a_rank_that_fails_is_a_reason(monkeypatch):
    class Here:
        vllm_version = "0.32.0"

    def broken(*args, **kwargs):
        raise LatentMoEError("rank 1 died of signal SIGKILL before it gave a result")

    monkeypatch.setattr(oracle, "describe", Here)
    monkeypatch.setattr(oracle, "launch", broken)
    monkeypatch.setattr(oracle.torch.cuda, "is_available", lambda: False)
    assert "rank 1 died" in oracle.ask_vllm(seed=1)["reason"]
