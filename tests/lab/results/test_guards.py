"""Each guard on a pair of runs that differs in that one thing; and what must not trip it."""

import json

import pytest
from result_builders import CLIENT, bench_run, scaled, write_bench

from latent_moe.lab.results import PRIMARY, Results, read_results, read_text
from latent_moe.lab.results.comparison import NOT_COMPARABLE, compare


def table_of(*runs: dict):
    found = Results()
    for index, raw in enumerate(runs):
        found.add(read_text(json.dumps(raw), f"run {index}"))
    return compare(found)


def primary(table):
    (row,) = [row for row in table.rows if row.metric == PRIMARY]
    return row


def three_pairs(ours: dict | None = None, **changes) -> list[dict]:
    """Three pairs with an effect of 10 %; what is given changes the candidate of pair 2."""
    runs = []
    for pair in (1, 2, 3):
        runs.append(bench_run("baseline", pair, 1 + pair / 500))
        special = {"ours": ours, **changes} if pair == 2 else {}
        runs.append(bench_run("candidate", pair, 1.1 + pair / 600, **special))
    return runs


def test_clean_pairs_are_judged():
    table = table_of(*three_pairs())
    assert primary(table).verdict == "improved"
    assert {row.verdict for row in table.rows} == {"improved"}
    assert table.comparable
    assert table.warnings == []


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"completed": 0, "failed": 32}, "no successful request"),
        (
            {"completed": 30, "failed": 2, "total_input_tokens": 7680, "total_output_tokens": 1920},
            "2 of 32 requests failed",
        ),
        ({"total_output_tokens": 2000}, "different tokens per request"),
        ({"total_input_tokens": 8000}, "different tokens per request"),
        (
            {"num_prompts": 64, "completed": 64, "total_input_tokens": 16384, "total_output_tokens": 4096},
            "number of requests: 32 against 64",
        ),
        ({"request_rate": 3.0}, "different request rate"),
        ({"model_id": "acme/other"}, "different models"),
        ({"mean_ttft_ms": 0.0}, "zero or negative"),
        ({"mean_tpot_ms": -1.0}, "zero or negative"),
        ({"median_itl_ms": -1.0}, "zero or negative"),
        ({"ours": {"cold": True}}, "cold first run"),
        ({"ours": {"prefix_cache_hit_tokens": 4000}}, "4000 of 8192 prompt tokens"),
        ({"ours": {"device": "another"}}, "different devices"),
    ],
)
def test_guard(changes, reason):
    table = table_of(*three_pairs(**changes))
    for row in table.rows:
        assert row.verdict == NOT_COMPARABLE
        assert reason in row.reason
        assert row.delta_pct is None
        assert row.ci95_pct is None
    assert not table.comparable


def test_a_few_prefix_hits_of_a_chat_template_are_fine():
    assert primary(table_of(*three_pairs(ours={"prefix_cache_hit_tokens": 64}))).verdict == "improved"


def test_the_same_model_under_two_paths_is_the_same_model():
    assert primary(table_of(*three_pairs(model_id="/models/toy"))).verdict == "improved"


def test_prompts_sent_twice_to_one_server_are_warm():
    first = bench_run("baseline", 1, ours={"prefix_caching": True})
    again = bench_run("baseline", 2, ours={"prefix_caching": True, "boot": "b0", "seed": 101})
    others = [bench_run("candidate", pair) for pair in (1, 2)]
    assert "prompts of run 0 once more" in primary(table_of(first, again, *others)).reason


def test_without_prefix_caching_equal_prompts_are_no_fault():
    again = bench_run("baseline", 2, ours={"seed": 101})
    assert (
        primary(
            table_of(bench_run("baseline", 1), again, *[bench_run("candidate", k) for k in (1, 2)])
        ).reason
        is None
    )


def raw_runs(tmp_path, name: str, ttfts: list[float]):
    folder = tmp_path / name
    folder.mkdir()
    for k, ttft in enumerate(ttfts):
        raw = CLIENT | {"mean_ttft_ms": ttft, "date": f"20260301-12{k:02d}00"}
        (folder / f"{k}.json").write_text(json.dumps(raw))
    return folder


def test_cold_first_run_is_seen_in_files_that_do_not_say(tmp_path):
    paths = [
        raw_runs(tmp_path, "before", [900.0, 400.0, 410.0]),
        raw_runs(tmp_path, "after", [400.0, 395.0, 405.0]),
    ]
    assert "first run 2.2 times slower" in primary(compare(read_results(paths))).reason


def test_ordinary_noise_is_not_taken_for_a_cold_run(tmp_path):
    paths = [
        raw_runs(tmp_path, "before", [440.0, 400.0, 410.0]),
        raw_runs(tmp_path, "after", [400.0, 395.0, 405.0]),
    ]
    assert primary(compare(read_results(paths))).verdict != NOT_COMPARABLE


def test_one_token_per_request_leaves_the_other_metrics():
    one_token = {"total_output_tokens": 32, "mean_tpot_ms": 0.0, "mean_itl_ms": 0.0, "ours": {"osl": 1}}
    runs = [
        bench_run(arm, pair, 1 + pair / 500 + 0.1 * (arm == "candidate"), **one_token)
        for pair in (1, 2, 3)
        for arm in ("baseline", "candidate")
    ]
    table = table_of(*runs)
    verdicts = {row.metric: (row.verdict, row.baseline) for row in table.rows}
    assert verdicts["mean_tpot_ms"] == verdicts["mean_itl_ms"] == (NOT_COMPARABLE, None)
    assert verdicts["mean_ttft_ms"][0] == "improved"
    assert table.comparable


def test_different_lengths_meet_and_are_refused(tmp_path):
    for name, length in (("before", 8192), ("after", 7936)):
        (tmp_path / f"{name}.json").write_text(json.dumps(CLIENT | {"total_input_tokens": length}))
    table = compare(read_results([tmp_path / "before.json", tmp_path / "after.json"]))
    assert "different lengths: 256/64 against 248/64" in primary(table).reason


def test_a_pair_with_one_arm_is_left_out_and_named():
    table = table_of(*three_pairs(), bench_run("baseline", 4, 3.0))
    assert primary(table).pairs == 3
    assert [warning.code for warning in table.warnings] == ["incomplete_pair"]


def test_a_file_read_twice_counts_once(tmp_path):
    out = write_bench(tmp_path, three_pairs())
    copy = out / "runs" / "copy.json"
    copy.write_text((out / "runs" / "candidate_pair2_c4.json").read_text())
    table = compare(read_results([out]))
    assert primary(table).pairs == 3
    assert [warning.code for warning in table.warnings] == ["duplicate_run"]


def test_pairs_of_one_server_start_are_one_observation():
    runs = three_pairs()
    for run in runs:
        run["latent_moe"] |= {"boot": run["latent_moe"]["arm"], "prefix_caching": False}
    table = table_of(*runs)
    assert primary(table).pairs == 1
    assert primary(table).verdict == "inconclusive"
    assert [warning.code for warning in table.warnings] == ["shared_boot"]


def test_runs_of_two_kinds_are_not_compared(tmp_path, repository):
    (tmp_path / "mine.json").write_text(
        json.dumps(
            scaled(1.0, label="mine", max_concurrency=8)
            | {"latent_moe": {"schema": 1, "isl": 8192, "osl": 1024}}
        )
    )
    results = read_results([repository / "profiles" / "mi355x_pr51253", tmp_path / "mine.json"])
    row = next(row for row in compare(results, "main", "mine").rows if row.metric == PRIMARY)
    assert "published against measured" in row.reason


def test_a_warm_up_and_a_run_are_not_averaged(fixtures):
    text = (fixtures / "results" / "vllm_0_32_client.log").read_text()
    warm_up = (
        text.replace("16        ", "4         ")
        .replace("2048      ", "512       ")
        .replace("256       ", "64        ")
    )
    row = primary(compare(read_text(warm_up + text, "client.log").named("client")))
    assert row.reason == "different number of requests: 4 against 16"
    assert row.baseline is None


def test_examples_show_each_guard_at_work():
    from latent_moe.lab.notebooks.validity_examples import guard_examples

    found = {item["example"]: item for item in guard_examples()}
    assert found.pop("nothing changed")["verdict"] == "improved"
    assert found.pop("one pair only")["verdict"] == "inconclusive"
    assert len(found) == 8
    assert {item["verdict"] for item in found.values()} == {NOT_COMPARABLE}
    assert all(item["reason"] and item["delta_pct"] is None for item in found.values())
    assert len({item["reason"] for item in found.values()}) == 8
