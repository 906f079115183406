"""The table: the published one to the last digit, the small cases, the arms, and the verb."""

import csv
import json
import shutil
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from result_builders import CLIENT, bench_run, write_bench

from latent_moe.cli import main
from latent_moe.cli.output import clean
from latent_moe.errors import InputError
from latent_moe.lab.recordings import profile_path
from latent_moe.lab.results import METRICS, PRIMARY, Results, read_results, read_text, render
from latent_moe.lab.results.comparison import compare, recommend_from_runs

DELTA_COLUMNS = {name: f"{name.removesuffix('_ms')}_pct" for name in METRICS}


@pytest.fixture(scope="module")
def published(repository):
    return repository / "profiles" / "mi355x_pr51253"


@pytest.fixture
def demo(tmp_path):
    """Three pairs at two concurrencies, the candidate about 5 % faster, and a third arm."""
    runs = []
    for concurrency in (4, 8):
        load = {"ours": {"concurrency": concurrency}, "max_concurrency": concurrency}
        for pair in (1, 2, 3):
            runs.append(bench_run("baseline", pair, 1 + pair / 300, **load))
            runs.append(bench_run("candidate", pair, 1.05 + pair / 310, **load))
        runs.append(
            bench_run(
                "auto",
                1,
                1.2,
                ours={"concurrency": concurrency, "role": None, "boot": "x"},
                max_concurrency=concurrency,
            )
        )
    return write_bench(tmp_path / "demo", runs)


def lines(text: str) -> list[list[str]]:
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("|")
    ]


def test_published_table_to_the_last_digit(published):
    shown = lines(render.markdown(compare(read_results([published]))))
    with (published / "table.csv").open() as file:
        expected = list(csv.DictReader(file))
    figures = shown[2 : 2 + len(expected)]
    for cells, row in zip(figures, expected, strict=True):
        assert cells[:3] == [f"{row['isl']}/{row['osl']}", row["concurrency"], row["config"]]
        assert [cell.split(" (")[0] for cell in cells[3:]] == [row[name] for name in METRICS]


def test_published_deltas_recompute(published):
    with (published / "published_deltas.csv").open() as file:
        expected = {int(row["concurrency"]): row for row in csv.DictReader(file)}
    rows = compare(read_results([published])).rows
    assert len(rows) == 5 * len(METRICS)
    for row in rows:
        assert f"{row.delta_pct:.2f}" == expected[row.concurrency][DELTA_COLUMNS[row.metric]]
        assert row.verdict == "inconclusive"  # one pair
        assert row.ci95_pct is None


def test_rounded_rates_are_said_to_be_rounded(published):
    (warning,) = compare(read_results([published])).warnings
    assert warning.code == "rounded_values"
    assert "req_per_s is printed with 3 decimals" in warning.message
    assert "+4.91 %, +3.99 %, +3.48 %, +3.05 %, +3.32 %" in warning.message


def test_case_13_has_no_numbers_and_cannot_win(fixtures):
    bad, good = (fixtures / "results" / name for name in ("all_failed.json", "all_ok.json"))
    for paths in ([bad], [good, bad], [bad, good]):
        table = compare(read_results(paths))
        assert len(table.rows) == len(METRICS)
        for row in table.rows:
            side = "candidate" if table.candidate == "all_failed" else "baseline"
            assert getattr(row, side) is None
            assert row.verdict == "not_comparable"
            assert "no successful request" in row.reason


def test_case_14_is_not_comparable(fixtures):
    table = compare(
        read_results([fixtures / "results" / "all_ok.json", fixtures / "results" / "two_fifths_failed.json"])
    )
    assert table.success_rates == {"all_ok": 1.0, "two_fifths_failed": 0.6}
    assert {row.verdict for row in table.rows} == {"not_comparable"}
    assert {row.reason for row in table.rows} == {"80 of 200 requests failed (success rate 0.6)"}


def test_shared_cases_are_the_fixtures(shared, fixtures):
    names = {"13-all-failed": "all_failed", "14-a-ok": "all_ok", "14-b-40pct-failed": "two_fifths_failed"}
    for original, ours in names.items():
        text = (shared / "cases" / f"{original}.json").read_text()
        assert json.loads(text) == json.loads((fixtures / "results" / f"{ours}.json").read_text())


def test_deltas_recompute_from_the_means_shown(demo):
    for row in compare(read_results([demo])).rows:
        assert 100 * (row.candidate / row.baseline - 1) == pytest.approx(row.delta_pct)
        assert row.ci95_pct[0] < row.delta_pct < row.ci95_pct[1]
        assert (row.pairs, row.interval, row.verdict) == (3, "paired t", "improved")


def test_a_third_arm_is_chosen_by_name(demo):
    table = compare(read_results([demo]), candidate="auto")
    assert (table.baseline, table.candidate) == ("baseline", "auto")
    assert {row.verdict for row in table.rows} == {"inconclusive"}  # it has one pair


def test_swapped_arms_turn_the_verdict(demo):
    table = compare(read_results([demo]), baseline="candidate", candidate="baseline")
    assert {row.verdict for row in table.rows} == {"regressed"}


def test_arms_that_are_not_there_or_not_clear(demo, tmp_path):
    with pytest.raises(InputError, match=r"unknown arm 'pr' .there are: "):
        compare(read_results([demo]), candidate="pr")
    for name in "abc":
        (tmp_path / f"{name}.json").write_text(json.dumps(CLIENT))
    with pytest.raises(InputError, match=r"3 arms .a, b, c.: say which"):
        compare(read_results([tmp_path / f"{name}.json" for name in "abc"]))
    with pytest.raises(InputError, match="cannot be both"):
        compare(read_results([demo]), "auto", "auto")


def test_blocks_without_lengths_or_concurrency_are_never_pooled(fixtures):
    table = compare(read_results([fixtures / "results" / "client_blocks.log"]))
    cells = [(row.isl, row.osl, row.concurrency) for row in table.rows if row.metric == PRIMARY]
    assert sorted(map(str, cells)) == sorted(
        map(str, [(256, 64, 4), (256, 64, 8), (256, 64, None), (None, None, 8)])
    )
    assert len(lines(render.markdown(table))) == 2 + 4


def test_blocks_without_concurrency_are_not_compared_either(fixtures, tmp_path):
    block = fixtures / "results" / "old_spelling.json"
    shutil.copy(block, tmp_path / "after.json")
    table = compare(read_results([block, tmp_path / "after.json"]))
    assert {row.reason for row in table.rows} == {
        "unknown lengths or concurrency: never pooled with other runs"
    }
    assert len([row for row in table.rows if row.metric == PRIMARY]) == 2


def test_two_logs_are_paired_by_cell(fixtures, tmp_path):
    text = (fixtures / "results" / "client_blocks.log").read_text()
    (tmp_path / "before.log").write_text(text)
    (tmp_path / "after.log").write_text(text.replace("640.00", "672.00"))
    rows = compare(read_results([tmp_path / "before.log", tmp_path / "after.log"])).rows
    row = next(row for row in rows if row.metric == PRIMARY and row.concurrency == 4)
    assert (row.baseline, row.candidate, row.verdict) == (640.0, 672.0, "inconclusive")
    assert row.delta_pct == pytest.approx(5.0)


def test_absent_metric_has_no_row(fixtures):
    rows = compare(read_results([fixtures / "results" / "old_spelling.json"])).rows
    assert [row.metric for row in rows] == [name for name in METRICS if name != "mean_itl_ms"]


def test_recommendation_from_the_runs_so_far(demo):
    found = recommend_from_runs(demo)
    assert set(found) == {4, 8}
    assert all(item.pairs >= 10 for item in found.values())
    assert "3 pairs spread by" in found[4].note


def test_frame_for_plots(demo):
    frame = render.frame(compare(read_results([demo])))
    assert len(frame) == 2 * len(METRICS)
    assert frame.loc[frame["primary"], "metric"].unique().tolist() == [PRIMARY]
    assert (frame["ci95_low_pct"] < frame["ci95_high_pct"]).all()
    assert set(frame["kind"]) == {"measured"}


def test_frame_marks_missing_numbers(fixtures):
    frame = render.frame(compare(read_results([fixtures / "results" / "all_failed.json"])))
    assert frame[["baseline", "candidate", "delta_pct", "ci95_low_pct"]].isna().all().all()


@settings(max_examples=150, deadline=None)
@given(
    key=st.sampled_from([name for name in CLIENT if isinstance(CLIENT[name], float | int)]),
    value=st.floats(allow_nan=True) | st.integers(-5, 10**6),
    pairs=st.integers(1, 3),
)
def test_any_changed_number_gives_a_whole_table_or_input_error(key, value, pairs):
    results = Results()
    try:
        for pair in range(1, pairs + 1):
            results.add(read_text(json.dumps(bench_run("baseline", pair)), f"b{pair}"))
            results.add(read_text(json.dumps(bench_run("candidate", pair, **{key: value})), f"c{pair}"))
        table = compare(results)
    except InputError:
        return
    assert {row.verdict for row in table.rows} <= {"improved", "regressed", "inconclusive", "not_comparable"}
    for text in (
        render.markdown(table),
        render.csv_text(table),
        json.dumps(clean(table.as_dict()), allow_nan=False),
    ):
        assert text


def run(capsys, *argv) -> tuple[int, str, str]:
    code = main(["table", *map(str, argv)])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_json_of_the_verb(demo, capsys):
    code, out, _ = run(capsys, demo, "--json", "--baseline", "baseline", "--candidate", "candidate")
    answer = json.loads(out.splitlines()[-1])
    assert code == 0
    assert answer["primary_metric"] == PRIMARY
    names = {
        "isl",
        "osl",
        "concurrency",
        "metric",
        "baseline",
        "candidate",
        "delta_pct",
        "ci95_pct",
        "verdict",
    }
    assert all(names <= set(row) for row in answer["rows"])
    assert answer["warnings"] == []


def test_one_file_gives_its_rows_without_a_candidate(fixtures, capsys):
    code, out, _ = run(capsys, fixtures / "results" / "all_ok.json", "--json")
    rows = json.loads(out)["rows"]
    assert code == 0
    assert [row["candidate"] for row in rows] == [None] * len(METRICS)
    assert rows[0]["baseline"] == 4512.0


def test_exit_codes(fixtures, capsys, tmp_path):
    results = fixtures / "results"
    assert run(capsys, results / "all_ok.json", results / "two_fifths_failed.json")[0] == 1
    code, out, err = run(capsys, tmp_path / "none.json")
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert "none.json" in err


def test_formats_and_output_file(demo, capsys, tmp_path):
    arms = ("--candidate", "candidate")
    _, text, _ = run(capsys, demo, *arms, "--format", "csv", "--output", tmp_path / "t.md")
    rows = list(csv.DictReader(text.splitlines()))
    assert len(rows) == 2 * len(METRICS)
    assert float(rows[0]["ci95_low_pct"]) < float(rows[0]["delta_pct"])
    written = (tmp_path / "t.md").read_text()
    assert "95 % intervals: paired t, 3 pairs" in written
    assert "Primary metric: total_tok_per_s" in written
    code, _, err = run(capsys, demo, *arms, "--output", tmp_path / "no" / "t.md")
    assert code == 2
    assert "t.md" in err


def test_csv_keeps_published_digits(published, capsys):
    _, text, _ = run(capsys, published, "--format", "csv")
    assert ",0.404,0.420," in text


def test_same_answers_stand_in_the_table(demo, fixtures, capsys):
    for arm, last in (("baseline", 7), ("candidate", 8)):
        (demo / "parity").mkdir(exist_ok=True)
        raw = {
            "latent_moe": {"arm": arm},
            "prompts": [{"id": "p0", "prompt": "x", "token_ids": [5, 6, last]}],
        }
        (demo / "parity" / f"{arm}.json").write_text(json.dumps(raw))
        target = demo / "accuracy" / arm / "model"
        target.mkdir(parents=True)
        shutil.copy(fixtures / "results" / "lm_eval_gsm8k.json", target / "results_2026.json")
    _, out, _ = run(capsys, demo, "--candidate", "candidate", "--json")
    answer = json.loads(out)
    assert answer["parity"]["same_tokens_share"] == pytest.approx(2 / 3)
    assert {item["verdict"] for item in answer["accuracy"]} == {"not_different"}
    _, text, _ = run(capsys, demo, "--candidate", "candidate")
    assert "66.67 % of 3 greedy tokens are the same" in text


def test_accuracies_alone_are_compared(fixtures, tmp_path, capsys):
    for arm in ("before", "after"):
        shutil.copy(fixtures / "results" / "lm_eval_gsm8k.json", tmp_path / f"{arm}.json")
    code, text, _ = run(capsys, tmp_path / "before.json", tmp_path / "after.json")
    assert code == 0
    assert "0.9636 against 0.9636, not different" in text


def test_the_verb_imports_neither_torch_nor_vllm(fixtures):
    code = "import sys; from latent_moe.cli import main; main(sys.argv[1:]); print(sorted({'torch', 'vllm'} & set(sys.modules)))"
    paths = [str(fixtures / "results" / "all_ok.json"), str(fixtures / "results" / "two_fifths_failed.json")]
    done = subprocess.run(
        [sys.executable, "-c", code, "table", *paths], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_file_of_a_recording_is_what_its_manifest_says(capsys):
    measured = str(profile_path("h200_first_measurements") / "vllm_tp2.csv")
    assert main(["table", measured, "--baseline", "replicated", "--candidate", "column_parallel"]) == 0
    assert "numbers: measured on NVIDIA H200" in capsys.readouterr().out
    published = str(profile_path("mi355x_pr51253") / "table.csv")
    assert main(["table", published, "--baseline", "main", "--candidate", "PR", "--format", "csv"]) == 0
    line = capsys.readouterr().out.splitlines()[1]
    assert ",published," in line
