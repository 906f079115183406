"""early_weights and one_launch on real ranks under Triton's interpreter: right, deterministic, and safe when a rank is late."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from latent_moe.config import TINY
from latent_moe.fused_kernel import why_not
from latent_moe.tail_variants import mailbox
from latent_moe.tail_variants.registry import TAILS

PROGRAM = Path(__file__).with_name("peer_ranks.py")
NAMES = ("early_weights", "one_launch")


@pytest.fixture(scope="module", params=[2, 4])
def answer(request):
    if why_not(16, 16) == "Triton is not installed":
        pytest.skip("Triton is not installed")
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(PROGRAM.parents[2])}
    command = [sys.executable, PROGRAM, str(request.param)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


def test_right_on_every_rank_call_after_call(answer):
    assert all(len(rank) == 14 for rank in answer["ranks"])
    for rank in answer["ranks"]:
        for case, one in rank.items():
            assert all(0 < error <= 1e-2 for error in one["errors"]), (case, one["errors"])


def test_the_same_bits_again_and_on_every_rank(answer):
    assert all(one["same_bits"] for rank in answer["ranks"] for one in rank.values())
    assert answer["agree"]


def test_no_collective_of_the_library_up_to_128_tokens(answer):
    for rank in answer["ranks"]:
        for case, one in rank.items():
            assert one["issued"] == (["all_reduce"] * 8 if "many" in case else []), case


@pytest.mark.parametrize("name", NAMES)
def test_a_rank_that_does_not_come_is_named_and_its_sums_are_nan(answer, name):
    if not answer["late"]:
        pytest.skip("asked of two ranks")
    assert answer["late"][name]["nan"]
    assert answer["late"][name]["told"].startswith("rank 1 sent nothing within 0.5 s")


@pytest.mark.parametrize("name", NAMES)
def test_refusals_have_reasons(monkeypatch, name):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    config = TINY.replace(hidden_size=64, latent_size=96)
    assert TAILS[name].refuse(config, 2, 1) is None
    assert "no multiple of 16 each" in TAILS[name].refuse(config, 8, 1)
    assert "multiples of 16" in TAILS[name].refuse(config.replace(latent_size=24), 2, 1)
    monkeypatch.delenv("TRITON_INTERPRET")
    monkeypatch.setattr(mailbox.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(mailbox.torch.version, "hip", "7.2")
    assert "on CUDA only" in TAILS[name].refuse(config, 2, 1)
