"""latent-moe advise as a user runs it."""

import json

import pytest

from latent_moe.cli import main
from latent_moe.config import KIMI_K3, to_hf
from latent_moe.lab.cost.advise import pairs_to_show
from latent_moe.lab.cost.predict import SCORED
from latent_moe.lab.recordings import profile_path


def _json(capsys, *arguments):
    assert main(["advise", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_the_published_machine(capsys):
    advice = _json(capsys, "--hardware", "mi355x")
    assert advice["tails"][0]["tokens"] == 1
    assert [item["tokens"] for item in advice["tails"]] == sorted(item["tokens"] for item in advice["tails"])
    for name in SCORED:
        low, high = advice["band90_pct"][name]
        assert low < advice["delta_pct"][name] < high
    assert advice["steps"].startswith("assumed")
    assert any("bench mi355x_one_build --pairs" in line for line in advice["commands"])
    assert any("kernel_us from 2.2 to 5.3" in line for line in advice["would_change_it"])


def test_results_of_ones_own_take_the_place_of_assumed_steps(capsys):
    own = _json(
        capsys, "--hardware", "h200", "--tp", "2", "--isl", "4096", "--osl", "256",
        "--max-num-batched-tokens", "8192", "--table", str(profile_path("h200x2_vllm")),
    )  # fmt: skip
    assert own["steps"] == "from the table's own times, its row 4096/256 at concurrency 8"
    assert 0 < own["share_of_step"]["decode"] < 1
    assumed = _json(capsys, "--hardware", "h200", "--tp", "2", "--isl", "4096", "--osl", "256")
    widths = [
        ends["band90_pct"]["mean_tpot_ms"][1] - ends["band90_pct"]["mean_tpot_ms"][0]
        for ends in (own, assumed)
    ]
    assert widths[0] < widths[1]


def test_a_model_by_its_config_file(capsys, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(to_hf(KIMI_K3)))
    given = _json(capsys, "--hardware", "mi355x", "--config", str(tmp_path / "config.json"))
    assert given == _json(capsys, "--hardware", "mi355x")


def test_text_says_what_to_run(capsys):
    assert main(["advise", "--hardware", "h200"]) == 0
    out = capsys.readouterr().out
    assert "from T = 1:" in out
    assert "90 % band" in out
    assert "commands:" in out


def test_small_changes_need_more_pairs_and_the_smallest_cannot_be_shown():
    few, many = (pairs_to_show(delta, 0.01) for delta in (4.0, 1.0))
    assert few < many
    assert pairs_to_show(0.01, 0.01) is None


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ((), "say --hardware: here, or one of"),
        (("--hardware", "abacus"), "unknown hardware 'abacus'"),
        (("--hardware", "h200", "--tp", "1"), "nothing to shard"),
        (("--hardware", "h200", "--tp", "3"), "does not divide the hidden size"),
        (("--hardware", "h200", "--osl", "1"), "output length at least 2"),
        (("--hardware", "h200", "--config", "nowhere.json"), "nowhere.json"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(capsys, arguments, fault):
    assert main(["advise", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert fault in line


@pytest.mark.parametrize("asked", [("--concurrency", "24"), ("--isl", "1000", "--osl", "1000")])
def test_a_row_that_was_not_asked_for_is_said(capsys, asked):
    told = _json(capsys, "--hardware", "mi355x", "--table", str(profile_path("mi355x_pr51253")), *asked)
    assert "which it lacks" in told["steps"]


def test_a_trace_without_a_latent_tail_gives_no_advice(capsys, fixtures):
    trace = fixtures / "traces" / "sharded_kernel_trace.csv"
    assert main(["advise", "--hardware", "mi355x", "--trace", str(trace)]) == 1
    assert "no latent tail" in capsys.readouterr().err
