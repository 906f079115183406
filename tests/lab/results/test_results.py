"""Readers: every spelling, several blocks in a log, published digits, and nothing that is not there."""

import contextlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from result_builders import CLIENT, bench_run, scaled, write_bench

from latent_moe.errors import InputError
from latent_moe.lab.results import METRICS, read_file, read_results, read_text


def one(path):
    (run,) = read_file(path).runs
    return run


def test_current_spelling_read_from_a_bench_file(tmp_path):
    run = read_results([write_bench(tmp_path, [bench_run("candidate", 3)])]).runs[0]
    assert run.values == {
        "total_tok_per_s": 640.0,
        "req_per_s": 2.0,
        "output_tok_per_s": 128.0,
        "mean_ttft_ms": 400.0,
        "mean_tpot_ms": 25.4,
        "mean_itl_ms": 25.4,
    }
    assert (run.arm, run.role, run.pair, run.cell, run.seed) == (
        "candidate",
        "candidate",
        3,
        (256, 64, 4),
        103,
    )


def test_old_spelling(fixtures):
    run = one(fixtures / "results" / "old_spelling.json")
    assert run.values["req_per_s"] == 2.0
    assert (
        run.values["total_tok_per_s"] == 640.0
    )  # input_throughput + output_throughput: the sum was not written then
    assert "mean_itl_ms" not in run.values
    assert (run.completed, run.failed, run.concurrency) == (16, 0, None)
    assert (run.isl, run.osl) == (256, 64)


def test_failures_counted_without_the_failed_field(fixtures):
    raw = json.loads((fixtures / "results" / "two_fifths_failed.json").read_text())
    del raw["failed"]
    (run,) = read_text(json.dumps(raw), "x").runs
    assert (run.completed, run.failed, run.asked) == (120, 80, 200)


def test_all_failed_has_no_values(fixtures):
    run = one(fixtures / "results" / "all_failed.json")
    assert run.values == {}
    assert run.impossible == {}
    assert run.completed == 0


def test_one_token_per_request_has_no_time_between_tokens():
    raw = CLIENT | {"total_output_tokens": 32, "mean_tpot_ms": 0.0, "mean_itl_ms": 0.0}
    (run,) = read_text(json.dumps(raw), "x").runs
    assert set(METRICS) - set(run.values) == {"mean_tpot_ms", "mean_itl_ms"}
    assert run.impossible == {}


@pytest.mark.parametrize("key", ["mean_ttft_ms", "mean_tpot_ms", "median_ttft_ms", "median_itl_ms"])
def test_negative_latency_is_no_value(key):
    (run,) = read_text(json.dumps(CLIENT | {key: -0.25}), "x").runs
    assert run.impossible == {key: -0.25}
    assert key not in run.values


def test_nan_is_absent():
    (run,) = read_text(json.dumps(CLIENT | {"mean_itl_ms": float("nan")}), "x").runs
    assert "mean_itl_ms" not in run.values


def test_appended_results_are_all_read():
    text = "\n".join(json.dumps(scaled(1 + k / 10)) for k in range(3))
    assert [run.values["req_per_s"] for run in read_text(text, "x").runs] == pytest.approx([2.0, 2.2, 2.4])


def test_blocks_of_a_log(fixtures):
    runs = read_file(fixtures / "results" / "client_blocks.log").runs
    assert [run.cell for run in runs] == [(256, 64, 4), (256, 64, 8), (256, 64, None), (None, None, 8)]
    assert [run.known_cell for run in runs] == [True, True, False, False]
    assert runs[0].printed["total_tok_per_s"] == "640.00"
    assert runs[2].values["total_tok_per_s"] == 1024.0  # "Total Token throughput" of older clients
    assert runs[0].asked == 16
    assert not any(run.truncated for run in runs)


def test_arguments_of_one_run_do_not_leak_into_the_next(fixtures):
    third = read_file(fixtures / "results" / "client_blocks.log").runs[2]
    assert third.asked is None
    assert third.failed is None


def test_cut_log_is_marked(fixtures):
    text = (fixtures / "results" / "client_blocks.log").read_text()
    cut = text[: text.index("Mean TPOT")]
    (run,) = read_text(cut, "x").runs
    assert run.truncated
    assert set(run.values) == {"total_tok_per_s", "req_per_s", "output_tok_per_s", "mean_ttft_ms"}


def test_block_lines_behind_prefixes_and_carriage_returns(fixtures):
    text = (fixtures / "results" / "client_blocks.log").read_text()
    dressed = "".join(f"(client pid=7) [12:00:01] {line}\r\n" for line in text.splitlines())
    assert [run.values for run in read_text(dressed, "x").runs] == [
        run.values for run in read_text(text, "x").runs
    ]


def test_peaks_are_not_taken_for_means(fixtures):
    run = one(fixtures / "results" / "vllm_0_32_client.log")
    assert run.values["output_tok_per_s"] == 13.97  # its peak is 28


def test_a_block_without_a_known_line_is_refused():
    frame = f"{' Serving Benchmark Result ':=^50}\n{{}}\n{'=' * 50}\n"
    with pytest.raises(InputError, match="block at line 1 has no line"):
        read_text(frame.format("Erfolgreiche Anfragen: 5"), "x")


def test_two_interleaved_blocks_are_refused(fixtures):
    text = (fixtures / "results" / "client_blocks.log").read_text()
    line = next(line for line in text.splitlines() if line.startswith("Mean TTFT"))
    with pytest.raises(InputError, match="repeats"):
        read_text(text.replace(line, f"{line}\n{line}", 1), "x")


def test_published_table_keeps_its_digits(repository):
    runs = read_results([repository / "profiles" / "mi355x_pr51253"]).runs
    assert [run.arm for run in runs] == ["main", "PR"] * 5
    assert runs[3].printed["req_per_s"] == "0.420"
    assert {run.kind for run in runs} == {"published"}
    assert runs[0].device == "8x AMD Instinct MI355X"


def test_published_table_with_an_empty_cell():
    text = "isl,osl,concurrency,config,total_tok_per_s,mean_itl_ms\n128,16,4,main,100.5,\n"
    (run,) = read_text(text, "x").runs
    assert run.values == {"total_tok_per_s": 100.5}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty file"),
        ("isl,osl,concurrency,config,total_tok_per_s\n", "a header and no row"),
        (
            "isl,osl,concurrency,config,req_per_s,req_per_s\n1,1,1,a,2,3\n",
            "column 'req_per_s' is there twice",
        ),
        ("   \n", "empty file"),
        ("{", "not whole JSON"),
        ('{"completed": 3', "not whole JSON"),
        ("[]", "empty list"),
        ('{"a": 1}', "no benchmark result"),
        ("just words", "neither"),
        (json.dumps(CLIENT | {"completed": "many"}), "completed is 'many'"),
        (json.dumps(CLIENT | {"completed": -1}), "completed is -1"),
        (json.dumps(CLIENT | {"completed": 1.5}), "completed is 1.5"),
        (json.dumps(CLIENT | {"mean_ttft_ms": True}), "mean_ttft_ms is True"),
        (json.dumps(CLIENT | {"latent_moe": []}), "latent_moe is list"),
        (json.dumps(CLIENT | {"latent_moe": {"schema": 9}}), "schema is 9"),
        (json.dumps(CLIENT | {"latent_moe": {"schema": 1, "role": "third"}}), "role is 'third'"),
        ("isl,osl,concurrency,config,req_per_s\n1,2,3,main\n", "line 2"),
        ("isl,osl,concurrency,config,req_per_s\n1,2,x,main,1\n", "concurrency is 'x'"),
        ("isl,osl,concurrency,config,req_per_s\n1,2,3,main,fast\n", "req_per_s is 'fast'"),
    ],
)
def test_unusable_input_says_what_and_where(text, message):
    with pytest.raises(InputError, match=message) as caught:
        read_text(text, "the/file")
    assert str(caught.value).startswith("the/file")


def test_missing_file_and_empty_folder(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        read_results([tmp_path / "nothing.json"])
    with pytest.raises(InputError, match="no result file"):
        read_results([tmp_path])


def test_each_path_is_an_arm(tmp_path):
    for name in ("before", "after"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.json").write_text(json.dumps(CLIENT))
        (tmp_path / name / "b.json").write_text(json.dumps(scaled(1.1)))
    runs = read_results([tmp_path / "before", tmp_path / "after"]).runs
    assert [run.arm for run in runs] == ["before", "before", "after", "after"]
    assert [run.arm for run in read_results([tmp_path]).runs] == ["after", "after", "before", "before"]


def test_a_label_names_the_arm(tmp_path):
    (tmp_path / "x.json").write_text(json.dumps(CLIENT | {"label": "main"}))
    assert read_results([tmp_path / "x.json"]).runs[0].arm == "main"


def test_bench_folder_is_read_without_its_logs(tmp_path, fixtures):
    out = write_bench(tmp_path, [bench_run("baseline", 1), bench_run("candidate", 1)])
    (out / "logs").mkdir()
    (out / "logs" / "client.log").write_text((fixtures / "results" / "client_blocks.log").read_text())
    (out / "state.json").write_text('{"next": 3}')
    results = read_results([out])
    assert len(results.runs) == 2
    assert results.warnings == []


def test_folder_names_what_it_ignored(tmp_path):
    (tmp_path / "good.json").write_text(json.dumps(CLIENT))
    (tmp_path / "other.json").write_text('{"a": 1}')
    (warning,) = read_results([tmp_path]).warnings
    assert warning.code == "ignored_files"
    assert "other.json" in warning.message


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)


def readable(text: str) -> None:
    """Rows or InputError, nothing else; and never a number that no clock can have measured."""
    try:
        runs = read_text(text, "mutated").runs
    except InputError:
        return
    for run in runs:
        assert all(value > 0 for value in run.values.values())
        assert set(run.values) <= set(METRICS)


@settings(max_examples=150, deadline=None)
@given(key=st.sampled_from([*CLIENT, "latent_moe"]), value=JSON_VALUES)
def test_any_changed_value_gives_rows_or_input_error(key, value):
    readable(json.dumps(bench_run("baseline", 1) | {key: value}))


@settings(max_examples=100, deadline=None)
@given(key=st.sampled_from(sorted(bench_run("baseline", 1)["latent_moe"])), value=JSON_VALUES)
def test_any_changed_value_of_our_own_object_too(key, value):
    readable(json.dumps(bench_run("baseline", 1, ours={key: value})))


@pytest.mark.parametrize("name", ["client_blocks.log", "all_ok.json", "lm_eval_gsm8k.json", "table.csv"])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_edit_of_a_file_gives_rows_or_input_error(name, data):
    text = SOURCES[name]
    start = data.draw(st.integers(0, len(text)))
    length = data.draw(st.integers(0, 60))
    readable(text[:start] + data.draw(st.text(max_size=12)) + text[start + length :])


SOURCES: dict[str, str] = {}


@pytest.fixture(scope="module", autouse=True)
def _sources(repository):
    for name in ("client_blocks.log", "all_ok.json", "lm_eval_gsm8k.json"):
        SOURCES[name] = (repository / "tests" / "fixtures" / "results" / name).read_text()
    SOURCES["table.csv"] = (repository / "profiles" / "mi355x_pr51253" / "table.csv").read_text()


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_give_rows_or_input_error(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("bytes") / "x.json"
    path.write_bytes(data)
    with contextlib.suppress(InputError):
        read_file(path)


def test_real_client_of_vllm_0_32_says_the_same_in_its_file_and_in_its_log(fixtures):
    saved, printed = (
        one(fixtures / "results" / f"vllm_0_32_{name}") for name in ("bench_run.json", "client.log")
    )
    assert set(saved.values) == set(printed.values) == set(METRICS)
    for name, value in saved.values.items():
        assert f"{value:.2f}" == printed.printed[name]
    assert saved.cell == printed.cell == (128, 16, 4)
    assert saved.completed == printed.completed == 16
    assert not printed.truncated
