"""verify: bounds on real ranks, and that a wrong tail, a lost column or a NaN fails it."""

import json

import pytest
import torch

from latent_moe.cli import main
from latent_moe.errors import InputError
from latent_moe.tail_variants.registry import TAILS
from latent_moe.verify import BOUNDS, _summary, checked_config, inputs, reference, verify
from latent_moe.weights import SeededWeights


def _assert_passes(answer, tp):
    assert answer["ok"]
    assert set(TAILS) <= set(answer["tails"])
    for name, tail in answer["tails"].items():
        for dtype, bound in (("float32", 1e-5), ("bfloat16", 1e-2)):
            assert 0 < tail["rel_err"][dtype] <= bound, (name, dtype)
        assert tail["max_rel_err"] == max(tail["rel_err"].values())
        assert (tail["reason"] is None) == tail["eligible"]
    expected = None if tp == 1 else True
    assert answer["checks"] == {"own_columns": expected, "same_collectives": expected}
    assert answer["tails"]["column_parallel"]["eligible"] == (tp > 1)


@pytest.mark.parametrize("preset", ["tiny", "demo"])
@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_bounds(preset, tp):
    _assert_passes(verify(preset, tp), tp)


def test_bounds_at_kimi_k3_sizes():
    answer = verify("kimi-k3", 8, tokens=8)
    _assert_passes(answer, 8)
    assert (answer["num_experts"], answer["experts_per_token"]) == (8, 4)


@pytest.mark.slow
@pytest.mark.parametrize("tp", [1, 2, 4])
def test_bounds_at_kimi_k3_sizes_on_fewer_ranks(tp):
    _assert_passes(verify("kimi-k3", tp), tp)


@pytest.mark.parametrize("tokens", [1, 3, 64])
def test_any_number_of_tokens(tokens):
    assert verify("tiny", 4, tokens)["ok"]


def test_json_and_seed(capsys):
    assert main(["verify", "--tp", "2", "--seed", "7", "--dtype", "float32", "--json"]) == 0
    captured = capsys.readouterr()
    answer = json.loads(captured.out.strip().splitlines()[-1])
    assert {"ok", "tp", "tails", "oracle"} <= set(answer)
    assert all({"max_rel_err", "eligible", "reason"} <= set(tail) for tail in answer["tails"].values())
    assert (answer["ok"], answer["tp"], answer["oracle"], answer["seed"]) == (True, 2, None, 7)
    assert "seed 7" in captured.err
    assert main(["verify", "--tp", "2", "--seed", "7", "--dtype", "float32", "--json"]) == 0
    again = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert again["tails"] == answer["tails"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--preset", "k2"], "unknown preset 'k2'"),
        (["--tp", "3"], "tp 3 does not divide"),
        (["--tp", "0"], "tp 0"),
        (["--tokens", "0"], "tokens 0"),
        (["--tokens", "1000000"], "tokens 1000000"),
        (["--oracle", "sglang"], "unknown oracle 'sglang'"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(arguments, message, capsys):
    assert main(["verify", *arguments, "--json"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = [line for line in captured.err.splitlines() if line.startswith("latent-moe:")]
    assert len(lines) == 1
    assert message in lines[0]


def _rank(error, own_columns=True, collectives=(("all_reduce", 8),)):
    tail = {"rel_err": error, "ran": "x", "eligible": True, "reason": None, "collectives": list(collectives)}
    base = tail | {"rel_err": 1e-7, "collectives": [("all_reduce", 8)]}
    return {"float32": {"tails": {"replicated": base, "column_parallel": tail}, "own_columns": own_columns}}


@pytest.mark.parametrize(
    ("bad", "ok"),
    [
        (_rank(1e-7), True),
        (_rank(2e-5), False),
        (_rank(float("nan")), False),
        (_rank(1e-7, own_columns=False), False),
        (_rank(1e-7, collectives=(("all_reduce", 9),)), False),
    ],
)
def test_one_bad_rank_fails_the_whole(bad, ok):
    config = checked_config("tiny")
    for ranks in ([_rank(1e-7), bad], [bad, _rank(1e-7)]):
        assert _summary(config, ranks, ["float32"])["ok"] is ok


def test_the_reference_tells_a_wrong_layer():
    config = checked_config("tiny")
    weights = dict(SeededWeights(config, 1))
    x = inputs(config, weights, 64, 1, [torch.float32])
    right = reference(config, weights, x)
    for name in weights:
        changed = reference(config, weights | {name: weights[name] * 1.01}, x)
        # Every tensor counts; the correction bias only through the choice of experts.
        assert name.endswith("bias") or (changed - right).norm() / right.norm() > BOUNDS["float32"], name


def test_unknown_dtype():
    with pytest.raises(InputError, match="unknown dtype float8"):
        verify("tiny", 2, dtypes=("float8",))
