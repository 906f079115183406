"""Reading a table, and what the published one says about itself."""

import csv

import pytest

from latent_moe.errors import InputError
from latent_moe.lab.cost import answer, predict, table_facts
from latent_moe.lab.recordings import load_manifest, profile_path

SETUP = predict.Setup()
HEADER = "isl,osl,concurrency,config,total_tok_per_s,mean_ttft_ms,mean_tpot_ms"


def _table(tmp_path, *rows, header=HEADER):
    file = tmp_path / "table.csv"
    file.write_text("\n".join([header, *rows]) + "\n")
    return file


def test_the_recording_says_it_is_published():
    manifest = load_manifest(profile_path("mi355x_pr51253"))
    assert (manifest.kind, manifest.source) == ("published", "vllm-project/vllm#51253")
    assert load_manifest(profile_path("mi355x_aiter_gemm")).kind == "published"
    assert load_manifest(profile_path("h200_first_measurements")).kind == "measured"


def test_total_over_output_is_nine_so_the_lengths_are_exact(published):
    for row in published:
        assert table_facts.row_facts(row).total_over_output == pytest.approx(9.0, abs=2e-4)


def test_every_published_delta_recomputes_from_the_printed_values(published):
    with open(profile_path("mi355x_pr51253") / "published_deltas.csv", newline="") as file:
        differences = table_facts.check_deltas(published, csv.DictReader(file), SETUP)
    assert sorted(differences) == [8, 16, 32, 64, 128]
    assert all(len(row) == 6 for row in differences.values())
    assert max(abs(value) for row in differences.values() for value in row.values()) <= 0.0051


def test_a_wrong_delta_is_noticed(published):
    wrong = [{"concurrency": "8", "mean_ttft_pct": "-5.62"}]
    assert table_facts.check_deltas(published, wrong, SETUP)[8]["mean_ttft_ms"] == pytest.approx(
        -0.10, abs=0.01
    )


def test_request_rates_differ_from_token_rates_by_their_rounding(published):
    before, after = predict.of_arm(published, "main"), predict.of_arm(published, "PR")
    found = [table_facts.rounding_pp(before[key], after[key]) for key in sorted(before)]
    assert [round(row["unrounded_pct"], 2) for row in found] == [4.91, 3.99, 3.47, 3.05, 3.32]
    for row in found:
        assert abs(row["printed_pct"] - row["unrounded_pct"]) <= row["rounding_pp"]


def test_littles_law_falls_short_by_the_drain(published):
    drains = [table_facts.row_facts(row).drain_pct for row in published if row.arm == "main"]
    assert min(drains) == pytest.approx(0.03, abs=0.01)
    assert max(drains) == pytest.approx(0.25, abs=0.01)
    assert drains == sorted(drains)


def test_the_number_of_prompts_is_called_an_inference(published):
    step_ms = predict.prefill_step_ms(predict.of_arm(published, "main").values(), 16384)
    readings = [table_facts.prompts_inferred(row, step_ms, 16384) for row in published]
    assert {reading["kind"] for reading in readings} == {"inference"}
    assert all(2 < reading["prompts_over_concurrency"] < 10 for reading in readings)


def test_what_each_pair_implies_and_how_it_scatters(published):
    implied = table_facts.implied_savings(published, SETUP)
    assert all(390 < row["prefill_us"] < 430 for row in implied)
    decode = {row["concurrency"]: row["decode_us"] for row in implied}
    assert all(12.5 < decode[c] < 15 for c in (8, 16, 32, 64))
    # Unexplained: at 128 the end-to-end change wants half as much again.
    assert decode[128] > 20


def test_the_end_to_end_fit_recovers_planted_savings():
    rows = []
    for concurrency, tpot in ((8, 30.0), (16, 35.0), (64, 75.0)):
        before = {"total_tok_per_s": 1.0, "mean_ttft_ms": 2000.0, "mean_tpot_ms": tpot}
        n = concurrency / 2
        e2e = 2000 + 1023 * tpot - 92e-3 * (n * 500 + (1023 - n) * 12)
        after = before | {"mean_tpot_ms": (e2e - 1900) / 1023, "mean_ttft_ms": 1900.0}
        rows += [
            predict.ArmRow(8192, 1024, concurrency, "main", before),
            predict.ArmRow(8192, 1024, concurrency, "PR", after),
        ]
    found = table_facts.end_to_end_fit(rows, SETUP, lambda concurrency: 2.0)
    assert found["prefill_us"] == pytest.approx(500)
    assert found["extra_decode_us"] == pytest.approx(10)


def test_candidates_need_their_baseline():
    row = predict.ArmRow(8192, 1024, 8, "PR", {})
    with pytest.raises(InputError, match="no baseline row 'main' at isl 8192, osl 1024, concurrency 8"):
        predict.baseline_rows([row], "main")


def test_a_table_without_its_baseline_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"unknown baseline 'main' .there are: PR."):
        answer.table_rows(_table(tmp_path, "8192,1024,8,PR,1,1,1"))


def test_rows_of_one_arm_and_cell_are_repeats(tmp_path):
    (row,) = answer.table_rows(_table(tmp_path, "8192,1024,8,main,1,1,1", "8192,1024,8,main,4,1,1"))
    assert row.metrics["total_tok_per_s"] == pytest.approx(2)


@pytest.mark.parametrize(
    ("header", "row", "fault"),
    [
        (
            HEADER.replace("mean_ttft_ms", "mean_ttft_s"),
            "8192,1024,8,main,1,1,1",
            "unknown column or unit 'mean_ttft_s'",
        ),
        (HEADER.replace(",mean_tpot_ms", ""), "8192,1024,8,main,1,1", "mean_tpot_ms is missing"),
        (HEADER, "8192,1024,8,main,1,0,1", "zero or negative, or beyond any clock: mean_ttft_ms = 0"),
        (HEADER, "8192,1024,8,main,1,-3,1", "zero or negative, or beyond any clock: mean_ttft_ms = -3"),
        (HEADER, "8192,1024,8,main,1,inf,1", "mean_ttft_ms is 'inf', a number was expected"),
        (HEADER, "8192,1024,8,main,1,,1", "mean_ttft_ms is missing"),
        (HEADER, "8192,1024,8,main,1,1", "number of columns"),
        (HEADER, "8k,1024,8,main,1,1,1", "isl is '8k', a positive whole number"),
    ],
)
def test_unusable_tables_are_refused_with_their_place(tmp_path, header, row, fault):
    with pytest.raises(InputError, match=fault):
        answer.table_rows(_table(tmp_path, row, header=header))


def test_an_empty_or_absent_table_is_refused(tmp_path):
    with pytest.raises(InputError, match="a header and no row"):
        answer.table_rows(_table(tmp_path))
    with pytest.raises(InputError, match=r"nothing\.csv: No such file"):
        answer.table_rows(tmp_path / "nothing.csv")
