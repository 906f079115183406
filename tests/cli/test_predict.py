"""latent-moe predict as a user runs it."""

import json
import shutil

import pytest

from latent_moe.cli import main
from latent_moe.lab.cost import hardware
from latent_moe.lab.recordings import profile_path

SCORED = ("total_tok_per_s", "mean_ttft_ms", "mean_tpot_ms")


def _json(capsys, *arguments):
    assert main(["predict", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def _refused(capsys, *arguments):
    assert main(["predict", *arguments]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    return lines[0]


def test_the_published_table_within_the_bounds(capsys):
    answer = _json(
        capsys, "--hardware", "mi355x", "--table", str(profile_path("mi355x_pr51253") / "table.csv")
    )
    assert [row["concurrency"] for row in answer["rows"]] == [8, 16, 32, 64, 128]
    bounds = dict(zip(SCORED, (0.5, 3.0, 0.5), strict=True))
    assert all(answer["mae_pp"][name] <= bounds[name] for name in SCORED)
    assert answer["prefill_step_ms"] == pytest.approx(710, abs=5)
    for row in answer["rows"]:
        for name in SCORED:
            change = 100 * (row["predicted"][name] / row["baseline"][name] - 1)
            assert row["delta_pct"][name] == pytest.approx(change)
            assert row["error_pp"][name] == pytest.approx(change - row["published_delta_pct"][name])


def test_anchored_within_the_bounds(capsys):
    answer = _json(capsys, "--anchor", "8")
    bounds = dict(zip(SCORED, (0.4, 0.6, 0.4), strict=True))
    assert all(answer["mae_pp"][name] <= bounds[name] for name in SCORED)
    assert [row["anchor"] for row in answer["rows"]] == [True, False, False, False, False]


def test_other_constants_move_the_prediction(capsys, tmp_path):
    lines = hardware.CONSTANTS.read_text().splitlines()
    changed = [
        line.replace("kernel_us,4.67", "kernel_us,2.3") if line.startswith("mi355x.") else line
        for line in lines
    ]
    assert changed != lines
    (tmp_path / "c.csv").write_text("\n".join(changed))
    before, after = _json(capsys), _json(capsys, "--constants", str(tmp_path / "c.csv"))
    assert before["rows"][0]["delta_pct"]["mean_tpot_ms"] < after["rows"][0]["delta_pct"]["mean_tpot_ms"]


def test_text_shows_predicted_beside_published(capsys):
    assert main(["predict"]) == 0
    out = capsys.readouterr().out
    assert "published +4.91 %" in out
    assert "mean absolute error" in out


def test_another_tp_and_machine_are_predicted_without_a_table_of_their_own(capsys):
    fewer = _json(capsys, "--tp", "2")
    assert (
        fewer["rows"][0]["delta_pct"]["total_tok_per_s"]
        < _json(capsys)["rows"][0]["delta_pct"]["total_tok_per_s"]
    )
    assert _json(capsys, "--hardware", "mi300x")["hardware"] == "mi300x"


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (("--tp", "3"), "does not divide the hidden size"),
        (("--tp", "0"), "not a positive number of ranks"),
        (("--hardware", "abacus"), "unknown hardware 'abacus' (there are: b200"),
        (("--table", "nowhere.csv"), "nowhere.csv"),
        (("--anchor", "7"), "no pair of rows at concurrency 7"),
        (("--baseline", "before"), "unknown baseline 'before'"),
        (("--layers", "0"), "layers 0"),
        (("--budget", "100"), "leaves no prompt tokens"),
        (("--tails", "nowhere"), "unknown recording 'nowhere'"),
        (("--preset", "huge"), "unknown preset"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(capsys, arguments, fault):
    assert fault in _refused(capsys, *arguments)


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ("8192,1024,8,PR,1,1,1", "unknown baseline 'main'"),
        ("8192,1024,8,main,1,-1,1", "zero or negative, or beyond any clock: mean_ttft_ms = -1"),
        ("8192,1024,8,main,0,1,1", "zero or negative, or beyond any clock: total_tok_per_s = 0"),
    ],
)
def test_bad_tables_are_one_line_and_exit_2(capsys, tmp_path, row, fault):
    file = tmp_path / "t.csv"
    file.write_text(f"isl,osl,concurrency,config,total_tok_per_s,mean_ttft_ms,mean_tpot_ms\n{row}\n")
    assert fault in _refused(capsys, "--table", str(file))


def test_an_unknown_unit_is_one_line_and_exit_2(capsys, tmp_path):
    file = tmp_path / "t.csv"
    file.write_text(
        "isl,osl,concurrency,config,total_tok_per_s,mean_ttft_us,mean_tpot_ms\n8192,1024,8,main,1,1,1\n"
    )
    assert "unknown column or unit 'mean_ttft_us'" in _refused(capsys, "--table", str(file))


def test_a_calibrated_machine_goes_before_a_named_one(published_path):
    from latent_moe.lab.cost import answer as report

    figures = {"copy_tb_per_s": 4.0, "gemm_tflops": 700.0, "launch_us": 3.0}
    machine = hardware.from_calibration(figures, hardware.get("h200"))
    answer = report.predict({"table": published_path, "machine": machine, "hardware": "here"})
    assert answer["hardware"] == "this machine"
    assert answer["mae_pp"]["total_tok_per_s"] > 0


@pytest.fixture
def published_path():
    return str(profile_path("mi355x_pr51253"))


@pytest.mark.parametrize("value", ["1e308", "1e-308"])
@pytest.mark.parametrize("column", ["mean_ttft_ms", "mean_tpot_ms", "total_tok_per_s"])
def test_numbers_beyond_computing_are_refused_or_give_numbers(capsys, tmp_path, column, value):
    header, *lines = (profile_path("mi355x_pr51253") / "table.csv").read_text().splitlines()
    place = header.split(",").index(column)
    rows = [line.split(",") for line in lines]
    for row in rows:
        row[place] = value
    table = tmp_path / "table.csv"
    table.write_text("\n".join([header, *(",".join(row) for row in rows)]))
    code = main(["predict", "--table", str(table), "--json"])
    printed = capsys.readouterr()
    if code == 0:
        assert None not in json.loads(printed.out)["rows"][0]["predicted"].values()
    else:
        assert code == 2
        assert len(printed.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--tp", "1"), "nothing to shard"),
        (("--baseline", "main", "--candidate", "main"), "both 'main'"),
        (("--table", str(profile_path("cpu_demo"))), "which is not known here: say --hardware"),
    ],
)
def test_what_cannot_be_predicted_is_said(capsys, arguments, said):
    assert said in _refused(capsys, *arguments)


def test_a_column_that_is_there_twice_is_refused(capsys, tmp_path):
    header, *lines = (profile_path("mi355x_pr51253") / "table.csv").read_text().splitlines()
    table = tmp_path / "twice.csv"
    table.write_text("\n".join([f"{header},mean_ttft_ms", *(f"{line},1" for line in lines)]))
    assert "'mean_ttft_ms' is there twice" in _refused(capsys, "--table", str(table))


def test_measured_is_what_the_table_verb_says(capsys):
    folder = str(profile_path("cpu_demo"))
    (row,) = _json(capsys, "--table", folder, "--hardware", "h200")["rows"]
    assert main(["table", folder, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out.splitlines()[-1])["rows"]
    changes = {each["metric"]: each["delta_pct"] for each in printed}
    for name in SCORED:
        assert row["published_delta_pct"][name] == pytest.approx(changes[name])


def test_times_that_were_measured_have_no_known_error(capsys):
    answer = _json(capsys, "--table", str(profile_path("h200x2_vllm_6layers")), "--tails", "h200x2_tails")
    assert {value for row in answer["rows"] for value in row["uncertainty_pp"].values()} == {None}


def test_table_and_predict_leave_out_the_same_rows_for_the_same_reason(capsys, tmp_path):
    """Once `predict` scored runs of 0.4 % fewer output tokens as +12.1 % where `table` refused them."""
    folder = tmp_path / "fewer_tokens"
    shutil.copytree(profile_path("cpu_demo"), folder)
    changed = [file for file in (folder / "runs").glob("*.json") if _cut(file)]
    assert changed
    assert main(["table", str(folder), "--json"]) == 1
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])["rows"]
    refused = {(row["concurrency"], row["reason"]) for row in rows if row["verdict"] == "not_comparable"}
    answer = _json(capsys, "--table", str(folder), "--hardware", "h200")
    arm = json.loads(changed[0].read_text())["latent_moe"]["arm"]
    assert answer["left_out"] == [f"{arm} at concurrency {conc}: {why}" for conc, why in sorted(refused)]
    assert "different tokens per request" in answer["left_out"][0]
    assert [row["published_delta_pct"] for row in answer["rows"]] == [None] * len(refused)
    assert set(answer["mae_pp"].values()) == {None}


def _cut(file):
    run = json.loads(file.read_text())
    if run["latent_moe"]["role"] != "candidate":
        return False
    run["total_output_tokens"] = round(0.996 * run["total_output_tokens"])
    file.write_text(json.dumps(run))
    return True


def test_this_machine_needs_a_table_of_its_own(capsys):
    assert "needs --table with this machine's own baseline rows" in _refused(capsys, "--hardware", "here")


def test_a_table_of_another_machine_is_said_first(capsys):
    assert main(["predict", "--hardware", "h200"]) == 0
    assert capsys.readouterr().out.startswith("DO NOT FIT: the table's rows are of 8x AMD Instinct MI355X")
    assert main(["predict", "--hardware", "mi355x"]) == 0
    assert "DO NOT FIT" not in capsys.readouterr().out
