"""What predict is asked: manifests and result files of other people, checked before anything is computed."""

import json
import shutil

import pytest

from latent_moe.errors import InputError
from latent_moe.lab.cost import answer as report
from latent_moe.lab.recordings import profile_path

TAILS = "h200x2_tails_vllm"


@pytest.fixture
def served(tmp_path):
    """A copy of the three-armed recording on two H200."""
    folder = tmp_path / "served"
    shutil.copytree(profile_path("h200x2_vllm"), folder)
    return folder


def ask(folder, **options):
    return report.predict({"table": str(folder), "candidate": "auto", **options})


def change_manifest(folder, **parameters):
    path = folder / "manifest.json"
    raw = json.loads(path.read_text())
    raw["parameters"] |= parameters
    path.write_text(json.dumps(raw))


def change_run(folder, name, **values):
    path = folder / "runs" / name
    raw = json.loads(path.read_text())
    raw["latent_moe"] |= values.pop("latent_moe", {})
    path.write_text(json.dumps(raw | values))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"arms": ["auto"]}, "arms is"),
        ({"arms": {"auto": "column_parallel"}}, "arms: auto is 'column_parallel'"),
        ({"arms": {"auto": {"tail": 5}}}, "with the tail's name"),
        ({"arms": {"auto": {"tail": "magic"}}}, "unknown tail 'magic'"),
        ({"moe_layers": "12"}, "layers is '12', a positive whole number"),
        ({"moe_layers": True}, "layers is True"),
        ({"max_num_batched_tokens": 8192.5}, "budget is 8192.5"),
        ({"tp": 0}, "tp is 0"),
        ({"preset": ["x"]}, "preset is"),
        ({"hardware": 5}, "hardware is 5, text was expected"),
        ({"tails": ["a"]}, "tails is"),
        ({"config": [1]}, "config is [1], an object"),
        ({"config": {"height": 3}}, "no height"),
    ],
)
def test_a_manifest_of_a_wrong_kind_is_named(served, parameters, message):
    change_manifest(served, **parameters)
    with pytest.raises(InputError) as caught:
        ask(served)
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"total_token_throughput": float("inf")}, "total_token_throughput is inf"),
        ({"total_token_throughput": float("-inf")}, "total_token_throughput is -inf"),
        ({"total_token_throughput": True}, "total_token_throughput is True"),
        ({"mean_ttft_ms": "fast"}, "mean_ttft_ms is 'fast'"),
        ({"mean_tpot_ms": 10**400}, "mean_tpot_ms is 1000"),
        ({"request_throughput": [1]}, "request_throughput is list"),
        ({"latent_moe": {"arm": None}}, "latent_moe.arm is None"),
        ({"latent_moe": {"role": "x"}}, "latent_moe.role is 'x'"),
        ({"latent_moe": {"concurrency": "many"}}, "concurrency is 'many'"),
        ({"latent_moe": {"isl": 0}}, "isl is 0"),
    ],
)
def test_a_result_file_that_cannot_be_is_named_with_its_key(served, changes, message):
    change_run(served, "auto_pair1_c8.json", **changes)
    with pytest.raises(InputError) as caught:
        ask(served)
    assert "auto_pair1_c8.json" in str(caught.value)
    assert message in str(caught.value)


def test_runs_with_failed_requests_are_not_scored():
    folder = str(profile_path("h200x2_vllm_6layers_auto"))
    answer = report.predict({"table": folder, "candidate": "auto", "tails": TAILS})
    at_8, at_32 = answer["rows"]
    assert at_8["published_delta_pct"]
    assert at_32["published_delta_pct"] is None
    (left_out,) = answer["left_out"]
    assert left_out.startswith("auto at concurrency 32: 66 of 128 requests failed (success rate 0.484)")
    assert f"not compared: {left_out}" in report.text(answer)


def test_short_answers_of_the_baseline_take_the_cell_out(served):
    change_run(served, "replicated_pair3_c32.json", total_output_tokens=20_000)
    answer = ask(served)
    assert [text.split(":")[0] for text in answer["left_out"]] == [
        "replicated at concurrency 32",
        "auto at concurrency 32",
    ]
    assert all("tokens where 256 were asked for" in text for text in answer["left_out"])
    assert [row["concurrency"] for row in answer["rows"]] == [8]


def test_nothing_about_a_server_is_guessed(served):
    (served / "manifest.json").unlink()
    with pytest.raises(InputError, match="give --tp, --layers, --budget, --hardware"):
        ask(served)
    about = {"tp": 2, "layers": 12, "budget": 8192, "hardware": "h200", "tails": TAILS}
    answer = ask(served, **about)
    assert answer["rows"]
    # The arm's own name is a tail's.
    assert answer["assumed"] == []
    assert answer["rows"][0]["saving_us_per_layer"]["prefill_step"] == pytest.approx(519.6, abs=0.1)


def test_a_tail_that_nothing_states_is_said_to_be_assumed(served):
    change_manifest(served, arms={})
    for file in (served / "runs").glob("auto_*.json"):
        change_run(served, file.name, latent_moe={"arm": "after"})
    answer = report.predict({"table": str(served), "candidate": "after", "tails": TAILS})
    assert answer["assumed"] == ["nothing says which tail the arm after runs: taken as column_parallel"]
    assert answer["assumed"][0] in report.text(answer)


def test_arms_that_run_the_same_tail_have_nothing_to_predict(served):
    change_manifest(served, arms={"auto": {"tail": "replicated"}})
    with pytest.raises(InputError, match="both run the tail replicated"):
        ask(served)


def test_a_folder_without_the_baselines_runs_says_so(served):
    for file in (served / "runs").glob("replicated_*.json"):
        file.unlink()
    with pytest.raises(InputError, match="no runs of an arm that is the baseline"):
        ask(served)


def test_options_that_contradict_each_other_are_refused(served):
    with pytest.raises(InputError, match="leave out --tails or --anchor"):
        ask(served, anchor=8, tails=TAILS)
    with pytest.raises(InputError, match="--tails is empty"):
        ask(served, tails="")
    # What is asked for goes before the manifest.
    assert ask(served, preset="demo") != ask(served)


def test_another_tp_than_the_tables_and_savings_below_zero_are_said(served):
    text = report.text(ask(served, tp=4))
    assert "the table is of tp 2: savings at tp 4" in text
    assert "a saving below zero" not in report.text(ask(served))
    assert "(the anchor: not scored)" in report.text(ask(served, anchor=8))
    with pytest.raises(InputError, match="would move a decode step's by"):
        ask(served, anchor=32)
    change_manifest(served, arms={"auto": {"tail": "token_parallel"}})
    assert "a saving below zero" in report.text(ask(served))


def test_a_time_that_cannot_be_takes_its_row_out(served):
    change_run(served, "auto_pair1_c8.json", mean_itl_ms=-1)
    (left_out,) = ask(served)["left_out"]
    assert left_out == "auto at concurrency 8: zero or negative, or beyond any clock: mean_itl_ms = -1"
