"""The fused kernel in Triton's interpreter, on this CPU, against float64; and on two real ranks."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from latent_moe.errors import InputError
from latent_moe.fused_kernel import norm_project_accumulate, why_not
from tools.studies.tune_fused import BUCKETS, LDS_BYTES, candidates

PROGRAM = Path(__file__).with_name("interpreted.py")
BOUND = 1e-2


@pytest.fixture(scope="module")
def answer():
    if why_not(16, 16) == "Triton is not installed":
        pytest.skip("Triton is not installed")
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(PROGRAM.parents[2])}
    done = subprocess.run(
        [sys.executable, PROGRAM, "1"], env=environment, capture_output=True, text=True, timeout=290
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


def test_right_within_bounds_on_every_size(answer):
    assert len(answer["cases"]) == 124
    wrong = {name: case["rel_err"] for name, case in answer["cases"].items() if not case["rel_err"] <= BOUND}
    assert not wrong
    # bf16 and fp16 round: an error of exactly 0 would mean that nothing was computed.
    assert all(case["rel_err"] > 0 for case in answer["cases"].values())


def test_only_the_own_columns_are_written(answer):
    assert all(case["around"] for case in answer["cases"].values())


def test_same_bits_with_a_poisoned_workspace_and_tickets_back_at_zero(answer):
    assert all(case["same_bits"] for case in answer["cases"].values())
    assert all(case["tickets"] == 0 for case in answer["cases"].values())


@pytest.mark.parametrize("tokens", ["1", "5"])
def test_the_tail_on_two_ranks(answer, tokens):
    for error, issued in answer["ranks"][tokens]:
        assert 0 < error <= BOUND
        t = int(tokens)
        assert issued == [["all_reduce", t * 48 * 2], ["all_reduce", t * 64 * 2]]


def test_the_tuner_times_what_is_right_and_drops_what_is_wrong(answer):
    assert answer["tuner"]["right_us"] > 0
    assert answer["tuner"]["wrong_us"] is None


@pytest.mark.parametrize("n", [896, 3584])
@pytest.mark.parametrize("tokens", BUCKETS)
def test_the_tuner_tries_plans_that_can_run(n, tokens):
    plans = candidates(tokens, n, 3584)
    assert len(plans) == len(set(plans)) > 10
    for plan in plans:
        assert 3584 % (plan.block_k * plan.split) == 0
        assert plan.stages * 2 * plan.block_k * (plan.block_t + plan.block_n) <= LDS_BYTES
        programs = -(-tokens // plan.block_t) * (n // plan.block_n) * plan.split
        assert 88 <= programs <= 264


def bf16(*shape):
    return torch.zeros(*shape, dtype=torch.bfloat16)


@pytest.mark.parametrize(
    ("x", "gain", "weight", "out", "message"),
    [
        (bf16(2, 16), None, bf16(32, 48), bf16(2, 32), "do not fit"),
        (bf16(2, 16), bf16(8), bf16(32, 16), bf16(2, 32), "do not fit"),
        (bf16(2, 16), None, bf16(32, 16), bf16(3, 32), "do not fit"),
        (bf16(2, 16).float(), None, bf16(32, 16), bf16(2, 32), "takes bfloat16 and float16"),
        (bf16(2, 16), None, bf16(16, 32).t(), bf16(2, 32), "contiguous"),
        (bf16(2, 16), None, bf16(32, 16), bf16(32, 2).t(), "contiguous"),
    ],
)
def test_bad_input_is_named(x, gain, weight, out, message):
    with pytest.raises(InputError, match=message):
        norm_project_accumulate(x, gain, 1e-5, weight, out)


def test_nothing_to_do_for_no_tokens():
    out = bf16(0, 32)
    assert norm_project_accumulate(bf16(0, 16), None, 1e-5, bf16(32, 16), out) is None


def test_refusals_have_reasons(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert why_not(64, 32) is None
    assert "multiples of 16" in why_not(64, 24)
    assert "not float32" in why_not(64, 32, torch.float32)
    monkeypatch.delenv("TRITON_INTERPRET")
    if not torch.cuda.is_available():
        assert "no GPU" in why_not(64, 32)
