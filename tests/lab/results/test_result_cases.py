"""Small inputs in the shape of public reports, each with the right answer of `table`; invented numbers."""

import gzip
import json

import pytest

from latent_moe.cli import main

# (case, arguments, exit code, what the JSON must say)
NOT_COMPARABLE = {
    "04-sglang-fewer-completed": (("base.jsonl", "cand.jsonl"), "successful requests: 40 against 33"),
    "05-rate-inside-the-vllm-block": (("base.log", "cand.log"), "request rate: 10 against 20"),
    "13-burstiness": (("base.json", "cand.json"), "burstiness: 1.0 against 100.0"),
    "15-completions-against-chat": (("base.json", "cand.json"), "openai against openai-chat"),
    "36-versions-mixed-by-resume": (("out",), "two server versions: 0.26.0 and 0.32.0"),
}
COMPARED = {
    "02-same-label-two-folders": (("base", "cand"), [5.26, 5.26]),
    "07-request-rate-without-max-concurrency": (("base", "cand"), [0.10, 0.79, 1.56, 5.26]),
    "08-lengths-rounded-apart": (("base.json", "cand.json"), [4.17]),
    "10-sweep-warmup": (("base", "cand"), [5.26, 5.26]),
    "12-sweep-summary-csv": (("base.csv", "cand.csv"), [5.26, 5.26]),
    "23-model-path-of-the-hub-cache": (("base.json", "cand.json"), [5.26]),
    "26-kubectl-timestamps": (("base.log", "cand.log"), [5.26]),
    "27-ansi-colours": (("base.log", "cand.log"), [5.26]),
    "29-json-gz": (("base.json.gz", "cand.json.gz"), [5.26]),
}
NOTED = {
    "24-same-basename": (("base.json", "cand.json"), "same_basename"),
    "34-identical-runs": (("a.json", "b.json"), "identical_runs"),
    "44-speculative-decoding-itl": (("base.json", "cand.json"), "speculative_decoding"),
    "45-sglang-retokenised": (("base.jsonl", "cand.jsonl"), "retokenized"),
}


@pytest.fixture
def ask(fixtures, capsys):
    """(exit code, the last line's JSON) of `table` on a case's paths."""

    def asked(case, *paths, options=()):
        folder = fixtures / "results" / "cases" / case
        code = main(["table", *(str(folder / path) for path in paths), *options, "--json"])
        return code, json.loads(capsys.readouterr().out.splitlines()[-1])

    return asked


def _primary(answer):
    return [row for row in answer["rows"] if row["metric"] == "total_tok_per_s"]


@pytest.mark.parametrize("case", NOT_COMPARABLE)
def test_what_differs_is_refused_with_the_difference(ask, case):
    paths, reason = NOT_COMPARABLE[case]
    code, answer = ask(case, *paths)
    assert code == 1
    assert all(row["verdict"] == "not_comparable" and reason in row["reason"] for row in _primary(answer))


@pytest.mark.parametrize("case", COMPARED)
def test_what_is_equal_is_compared_cell_by_cell(ask, case):
    paths, deltas = COMPARED[case]
    code, answer = ask(case, *paths)
    assert code == 0
    assert [row["delta_pct"] for row in _primary(answer)] == pytest.approx(deltas, abs=0.006)


@pytest.mark.parametrize("case", NOTED)
def test_what_a_reader_must_know_is_noted_beside_the_figures(ask, case):
    paths, note = NOTED[case]
    code, answer = ask(case, *paths)
    assert code == 0
    assert note in [warning["code"] for warning in answer["warnings"]]


def test_an_accuracy_folder_keeps_the_roles_of_its_manifest(ask):
    _, answer = ask("01-gsm8k-roles-swapped", "out")
    assert (answer["baseline"], answer["candidate"]) == ("before", "after")
    assert [item["difference"] for item in answer["accuracy"]] == pytest.approx([-0.06, -0.06])


def test_one_folder_of_five_concurrencies_is_one_arm(ask):
    code, answer = ask("17-one-folder-five-concurrencies", "results")
    assert (code, answer["baseline"], answer["candidate"]) == (0, "results", None)
    assert [row["concurrency"] for row in _primary(answer)] == [8, 16, 32, 64, 128]


def test_every_path_beside_the_named_baseline_is_a_candidate(ask):
    paths = ("base", "aiter_on", "aiter_tuned")
    code, answer = ask("18-several-candidates", *paths, options=("--baseline", "base"))
    assert code == 0
    assert answer["candidates"] == ["aiter_on", "aiter_tuned"]


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("19-lm-eval-limit", "questions: 1319 against 100"),
        ("21-lm-eval-other-model", "Kimi-K3 against Llama-3.1-8B"),
    ],
)
def test_accuracies_of_unlike_evaluations_are_not_compared(ask, case, reason):
    code, answer = ask(case, "base.json", "cand.json")
    assert code == 1
    assert all(
        item["verdict"] == "not_comparable" and reason in item["reason"] for item in answer["accuracy"]
    )


def test_the_table_that_lm_eval_prints_is_read(ask):
    _, answer = ask("31-lm-eval-printed-table", "lm.md")
    read = [(item["filter"], item["value"], item["stderr"], item["shots"]) for item in answer["accuracies"]]
    assert read == [("flexible-extract", 0.9545, 0.0057, 5), ("strict-match", 0.9484, 0.0061, 5)]


PASTED = """[ROCm][Perf] A change

Tasks\tVersion\tFilter\tn-shot\tMetric\t\tValue\t\tStderr
gsm8k\t3\tstrict-match\t20\texact_match\t↑\t0.9636\t±\t0.0052

ISL/OSL\tConc\tConfig\tTotal tokens/s\tDelta (%)\tTotal reqs/s\tDelta (%)\tmean TTFT (ms)\tDelta (%)
8k/1k\t8\tmain\t2000.00\t\t0.250\t\t1,900.00
8k/1k\t8\tPR\t2100.00\t+5.00\t0.262\t+4.80\t1,805.00\t-5.00

and a sentence after it, with a comma
"""


def test_a_pull_requests_text_is_read_as_the_table_that_it_prints(tmp_path, capsys):
    path = tmp_path / "pr.txt"
    path.write_text(PASTED, encoding="utf-8")
    assert main(["table", str(path), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["baseline"], answer["candidate"], answer["kind"]) == ("main", "PR", ["published"])
    (row,) = _primary(answer)
    assert (row["isl"], row["osl"], row["concurrency"], row["delta_pct"]) == (8192, 1024, 8, pytest.approx(5))


def test_the_pull_requests_own_text_gives_the_recorded_table(shared, repository, capsys):
    text = shared / "cases" / "results" / "30-pr-text.d" / "pr.txt"
    rows = []
    for path in (text, repository / "profiles" / "mi355x_pr51253" / "table.csv"):
        assert main(["table", str(path), "--json"]) == 0
        rows.append(
            [
                (r["concurrency"], r["metric"], r["delta_pct"])
                for r in json.loads(capsys.readouterr().out)["rows"]
            ]
        )
    assert rows[0] == rows[1]


def test_two_sessions_of_bench_are_all_their_pairs(tmp_path, capsys, repository):
    recorded = repository / "profiles" / "cpu_demo" / "runs"
    for session, shift in (("first", 0.0), ("second", 0.01)):
        (tmp_path / session / "runs").mkdir(parents=True)
        for path in recorded.glob("*.json"):
            run = json.loads(path.read_text())
            run["duration"] += shift
            run["latent_moe"]["boot"] += session
            (tmp_path / session / "runs" / path.name).write_text(json.dumps(run))
    assert main(["table", str(tmp_path / "first"), str(tmp_path / "second"), "--json"]) == 0
    together = _primary(json.loads(capsys.readouterr().out))
    assert main(["table", str(tmp_path / "first"), "--json"]) == 0
    alone = _primary(json.loads(capsys.readouterr().out))
    assert [row["pairs"] for row in together] == [2 * row["pairs"] for row in alone]


def test_a_packed_file_that_unpacks_to_too_much_is_one_line(tmp_path, capsys):
    path = tmp_path / "much.json.gz"
    with gzip.open(path, "wb", compresslevel=1) as packed:
        for _ in range(257):
            packed.write(bytes(1 << 20))
    assert main(["table", str(path)]) == 2
    assert "unpacks to more than 256 MiB" in capsys.readouterr().err


def test_utf_16_and_numbers_as_text_are_read(tmp_path, fixtures, capsys):
    raw = json.loads((fixtures / "results" / "cases" / "34-identical-runs" / "a.json").read_text())
    as_text = {key: str(value) if isinstance(value, int | float) else value for key, value in raw.items()}
    (tmp_path / "a.json").write_text(json.dumps(raw), encoding="utf-16")
    (tmp_path / "b.json").write_text(json.dumps(as_text | {"duration": "19"}))
    assert main(["table", str(tmp_path / "a.json"), str(tmp_path / "b.json"), "--json"]) == 0
    assert [row["delta_pct"] for row in _primary(json.loads(capsys.readouterr().out))] == [0.0]


def test_a_name_that_is_no_text_is_one_line(tmp_path, fixtures, capsys):
    folder = fixtures / "results" / "cases" / "34-identical-runs"
    out = str(tmp_path / "x\udcff.md")
    assert main(["table", str(folder / "a.json"), str(folder / "b.json"), "--output", out]) in (0, 2)
    assert "Traceback" not in capsys.readouterr().err


HEAD = "| ISL/OSL | Conc | Config | Delta (%) | Total tokens/s |\n|--|--|--|--|--|\n"


def _pasted(tmp_path, capsys, text):
    path = tmp_path / "pasted.md"
    path.write_text(text, encoding="utf-8")
    code = main(["table", str(path), "--json"])
    captured = capsys.readouterr()
    return code, json.loads(captured.out.splitlines()[-1]) if captured.out else None, captured.err


def test_a_figure_that_was_not_printed_stays_missing(tmp_path, capsys):
    rows = "| 8k/1k | 8 | main | | 2000 |\n| | 16 | main | | 3000 |\n| 8k/1k | 8 | PR | +5 | |\n| | 16 | PR | +5 | 3150 |\n"
    code, answer, _ = _pasted(tmp_path, capsys, HEAD + rows)
    assert code == 1
    assert [(row["concurrency"], row["candidate"]) for row in _primary(answer)] == [(8, None), (16, 3150.0)]


def test_a_sentence_under_the_table_ends_it(tmp_path, capsys):
    rows = "8k/1k\t8\tmain\t2000\n8k/1k\t8\tPR\t**2,100.5**\nSo it is faster, by 5 %.\n"
    code, answer, _ = _pasted(tmp_path, capsys, "ISL/OSL\tConc\tConfig\tTotal tokens/s\n" + rows)
    assert code == 0
    assert [row["candidate"] for row in _primary(answer)] == [2100.5]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (HEAD + "| 8k/1k | nan | main | | 2000 |\n", "line 3: conc is 'nan'"),
        (HEAD + "| 8k/1k | 8.5 | main | | 2000 |\n", "line 3: conc is '8.5'"),
        (HEAD + "| 0/1k | 8 | main | | 2000 |\n", "line 3: '0/1k' are no lengths"),
        (HEAD + "| 8k/1k | 8 | main | | 2.000,5 |\n", "line 3: total tokens/s is '2.000,5'"),
        (HEAD + "| 8k/1k | 8 | main | | 2000 |\n" * 2, "line 4: the row stands twice"),
        (
            "| ISL/OSL | Conc | Config | mean TTFT (s) |\n| 8k/1k | 8 | main | 1.8 |\n",
            "column 'mean ttft (s)'",
        ),
        ("| ISL/OSL | Conc | Config | Foo |\n| 8k/1k | 8 | main | 1 |\n", "no column with a known figure"),
        (
            "|Tasks|Filter|Metric|Value|Stderr|\n|-|-|-|-:|-:|\n|gsm8k|strict|exact_match|95.45|0.5|\n",
            "value is '95.45', a share between 0 and 1",
        ),
    ],
)
def test_a_pasted_cell_that_cannot_be_is_named_with_its_line(tmp_path, capsys, text, fault):
    code, _, said = _pasted(tmp_path, capsys, text)
    assert code == 2
    assert fault in said


def _lm_eval(tmp_path, name, scores, samples=1319):
    raw = {
        "results": {"gsm8k": scores},
        "versions": {"gsm8k": 3},
        "n-samples": {"gsm8k": {"effective": samples}},
    }
    path = tmp_path / name
    path.write_text(json.dumps(raw))
    return str(path)


@pytest.mark.parametrize(
    ("scores", "samples", "code", "fault"),
    [
        ({"exact_match,strict": "N/A"}, 1319, 2, "no accuracy has a value"),
        ({"word_perplexity,none": 8.1}, 1319, 2, "no share of right answers"),
        ({"exact_match,strict": 0.9}, 0, 2, "0 questions"),
        ({"acc,none": 0.9}, 1319, 1, "no accuracy stands in both arms"),
    ],
)
def test_an_accuracy_that_is_not_there_is_said(tmp_path, capsys, scores, samples, code, fault):
    base = _lm_eval(tmp_path, "base.json", {"exact_match,strict": 0.96})
    assert main(["table", base, _lm_eval(tmp_path, "cand.json", scores, samples), "--json"]) == code
    assert fault in capsys.readouterr().err


def test_two_arms_that_both_say_baseline_are_asked_about(tmp_path, capsys, repository):
    for path in sorted((repository / "profiles" / "cpu_demo" / "runs").glob("*_pair1_*.json")):
        run = json.loads(path.read_text())
        run["latent_moe"]["role"] = "baseline"
        (tmp_path / path.name).write_text(json.dumps(run))
    assert main(["table", str(tmp_path)]) == 2
    assert "2 arms say that they are the baseline" in capsys.readouterr().err
    assert main(["table", str(tmp_path), "--baseline", "replicated"]) == 0
