"""Recordings of tails: read, fitted, judged on T that the fit did not see; savings and end-to-end rows from them."""

import json
import random
from statistics import median

import pytest

from latent_moe.errors import InputError
from latent_moe.lab.cost import answer as report
from latent_moe.lab.cost import hardware, predict, savings, tail, tail_timings
from latent_moe.lab.recordings import load_manifest, profiles_dir
from latent_moe.lab.results import read_results
from tools.studies import fit

H200 = hardware.get("h200")


WHOLE = ("h200x2_tails", "h200x2_tails_vllm")
COMPUTE = ("h200_first_measurements", "h200_tp8_shapes")


def series():
    """(name, tp, mode) of every recording of H200 tails that is there."""
    found = []
    for name in (*COMPUTE, *WHOLE):
        folder = profiles_dir() / name
        if (folder / "tails.csv").is_file():
            rows = tail_timings.read(folder)
            found += [(name, *key) for key in sorted({(row["tp"], row["mode"]) for row in rows})]
    return found


def missed(rows, tp, mode, collectives):
    """The tails whose median error over held-out T is above 15 %, with that error."""
    judged = fit.cross_validate(fit.of_series(rows, tp, mode), H200, tp, collectives=collectives)
    assert judged
    errors = {tail: round(found.median_error, 3) for tail, found in judged.items()}
    return {tail: error for tail, error in errors.items() if error > 0.15}


@pytest.mark.parametrize(("name", "tp", "mode"), series())
def test_held_out_tails_are_predicted_within_15_per_cent(name, tp, mode):
    rows = tail_timings.read(name)
    # Where a row's samples were taken in one go, eager rows far above the graph's are the host's times of that moment.
    rows = fit.device_bound(rows) if mode == "eager" and name in COMPUTE else rows
    assert missed(rows, tp, mode, collectives=name in WHOLE) == {}


def test_samples_in_one_go_say_little_about_times_that_wait_for_the_host():
    """The same tail at the same T, measured twice: eager medians differ by more than the 15 % asked, graph medians do not."""
    folder = profiles_dir() / "h200x2_tails"
    times = [
        {
            (r["tail"], r["tokens"]): r["median_us"]
            for r in fit.of_series(tail_timings.read(folder, file), 2, mode)
        }
        for mode in ("eager", "graph")
        for file in ("series4.csv", "series3.csv")
    ]
    eager, graph = (
        median(
            abs(one[key] / two[key] - 1)
            for key in one
            if key in two and key[0] == "token_parallel" and key[1] <= 2048
        )
        for one, two in (times[:2], times[2:])
    )
    assert eager > 0.15
    assert graph < 0.05
    # And they miss the bound that samples taken in rounds (tails.csv) keep.
    assert missed(tail_timings.read(folder, "series4.csv"), 2, "eager", collectives=True)


def test_rows_that_wait_for_the_host_are_told_apart():
    def row(mode, us, tokens=8):
        return {"tail": "fused", "tp": 8, "tokens": tokens, "mode": mode, "median_us": us}

    rows = [row("graph", 10.0), row("eager", 50.0), row("eager", 12.0), row("eager", 99.0, tokens=16)]
    assert fit.device_bound(rows) == [rows[0], rows[2], rows[3]]


def test_the_fit_does_not_see_what_is_held_out():
    rows = fit.of_series(tail_timings.read("h200_first_measurements"), 8, "graph")
    held = {"replicated": [64], "column_parallel": [64]}
    garbled = [
        row | {"median_us": 1e4} if row["tokens"] == 64 and row["tail"] in held else row for row in rows
    ]
    honest, lied = (fit.hold_out(some, H200, 8, held, collectives=False) for some in (rows, garbled))
    for name in held:
        measured = next(row["median_us"] for row in rows if (row["tail"], row["tokens"]) == (name, 64))
        assert (lied[name].errors[0] + 1) * 1e4 == pytest.approx((honest[name].errors[0] + 1) * measured)


def test_the_fit_finds_the_machine_that_made_the_rows():
    truth = H200.replace(kernel_us=5.0, gemm_efficiency=0.6, gemm_floor_us=5.0, collective_latency_us=18.0)
    noise = random.Random(7)
    rows = [
        {
            "tail": name,
            "tokens": tokens,
            "median_us": tail.tail_cost(name, tokens, 2, truth).total_us * noise.uniform(0.99, 1.01),
        }
        for name in tail.TAIL_NAMES
        for tokens in (1, 8, 64, 512, 4096, 16384)
    ]
    found = fit.fit(rows, H200, 2)
    assert found.hardware.gemm_efficiency == pytest.approx(0.6, rel=0.1)
    assert found.hardware.collective_latency_us == pytest.approx(18, rel=0.15)
    assert all(0.9 < factor < 1.1 for line in found.factors.values() for factor in line.values())
    with pytest.raises(InputError, match="has not seen"):
        found.us("something", 8)


def test_recorded_savings_read_graph_rows_for_decode_and_eager_rows_for_prefill():
    rows = [
        {"tail": name, "tokens": tokens, "tp": 2, "mode": mode, "median_us": us}
        for name, tokens, mode, us in [
            ("replicated", 8, "graph", 46.0),
            ("column_parallel", 8, "graph", 39.0),
            ("replicated", 8, "eager", 200.0),
            ("column_parallel", 8, "eager", 199.0),
            ("replicated", 8192, "eager", 1300.0),
            ("column_parallel", 8192, "eager", 950.0),
        ]
    ]
    saving = savings.recorded(rows, 2, "replicated", "column_parallel")
    assert saving(8, True) == savings.Saving(7.0, None, "measured")
    assert saving(8192, False) == savings.Saving(350.0, None, "measured")
    # Twice the tokens of the last point: its time a token.
    assert saving(16384, False).us == pytest.approx(700.0)
    assert saving(16384, False).kind == "modelled"
    with pytest.raises(InputError, match=r"no rows at tp 4 \(it has tp 2\)"):
        savings.recorded(rows, 4, "replicated", "column_parallel")
    with pytest.raises(InputError, match="lacks replicated or fused near 8 tokens"):
        savings.recorded(rows, 2, "replicated", "fused")(8, True)
    # The candidate's line ends at 8 tokens: it is not stretched to 8192, in neither mode.
    short = [row for row in rows if row["tail"] == "replicated" or row["tokens"] == 8]
    with pytest.raises(InputError, match="lacks replicated or column_parallel near 8192 tokens"):
        savings.recorded(short, 2, "replicated", "column_parallel")(8192, False)
    alone = [row for row in rows if row["tail"] == "replicated"]
    with pytest.raises(InputError, match="another tail for auto"):
        savings.recorded(alone, 2, "replicated", "auto")(8, True)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("tail,tokens\nx,1\n", "lacks the columns median_us"),
        ("tail,tokens,median_us\nx,one,1\n", "must be numbers"),
        ("tail,tokens,median_us\nx,1,0\n", "must be positive"),
        ("tail,tokens,median_us\nx,1,nan\n", "must be positive"),
    ],
)
def test_unusable_recordings_are_refused(tmp_path, text, fault):
    (tmp_path / "tails.csv").write_text(text)
    with pytest.raises(InputError, match=fault):
        tail_timings.read(tmp_path)


def test_a_recording_that_is_not_there_names_those_that_are():
    with pytest.raises(InputError, match="h200_first_measurements"):
        tail_timings.read("nowhere")


def _run(folder, name, role, rate, ttft, pair=1, cold=False):
    about = {"role": role, "arm": name, "isl": 4096, "osl": 256, "concurrency": 8, "cold": cold}
    about |= {"pair": pair, "started": f"2026-03-01T12:0{pair}:00"}
    result = {"total_token_throughput": rate, "mean_ttft_ms": ttft, "mean_tpot_ms": 4.5, "latent_moe": about}
    result |= {"completed": 8, "total_input_tokens": 8 * 4096, "total_output_tokens": 8 * 256}
    (folder / "runs").mkdir(exist_ok=True)
    (folder / "runs" / f"{name}{pair}.json").write_text(json.dumps(result))


def _rows(folder, candidate):
    setup = predict.Setup(baseline="a", candidate=candidate)
    return report.arm_rows(read_results([folder]), setup)


def test_result_files_become_rows_by_arm(tmp_path):
    for pair, factor in ((1, 1.0), (2, 3.0)):
        _run(tmp_path, "a", "baseline", 100.0 * factor, 400.0 + 20 * (pair - 1), pair=pair)
        _run(tmp_path, "b", "candidate", 200.0 * factor, 390.0, pair=pair)
        _run(tmp_path, "d", "candidate", 500.0, 390.0, pair=pair)
    _run(tmp_path, "c", None, 1.0, 1.0)
    (before, after), left_out = _rows(tmp_path, "b")
    assert (before.arm, after.arm, left_out) == ("a", "b", ())
    assert before.metrics["total_tok_per_s"] == pytest.approx(30_000**0.5)
    assert before.metrics["mean_ttft_ms"] == pytest.approx(168_000**0.5)
    # Two candidates are two arms, not one with the mean of both.
    assert after.metrics["total_tok_per_s"] == pytest.approx(200 * 3**0.5)
    (_, other), _ = _rows(tmp_path, "d")
    assert other.metrics["total_tok_per_s"] == pytest.approx(500)
    (tmp_path / "runs" / "b1.json").write_text('{"completed": "x", "output_throughput": 1}')
    with pytest.raises(InputError, match=r"b1\.json"):
        _rows(tmp_path, "b")


def test_a_cold_run_takes_its_row_out(tmp_path):
    _run(tmp_path, "a", "baseline", 100.0, 400.0)
    _run(tmp_path, "b", "candidate", 9.0, 9000.0, cold=True)
    rows, left_out = _rows(tmp_path, "b")
    assert [row.arm for row in rows] == ["a"]
    assert left_out == ("b at concurrency 8: cold first run: nothing was sent to this server before it",)


def test_several_candidates_are_asked_about_by_name(tmp_path):
    for name, role in (("a", "baseline"), ("b", "candidate"), ("d", "candidate")):
        _run(tmp_path, name, role, 200.0, 390.0)
    about = {"table": str(tmp_path), "tails": "h200x2_tails", "hardware": "h200", "tp": 2, "layers": 12}
    about |= {"budget": 8192}
    with pytest.raises(InputError, match=r"say --candidate \(there are: b, d\)"):
        report.predict(about)
    assert report.predict(about | {"candidate": "d"})["rows"]
    with pytest.raises(InputError, match="unknown candidate 'e'"):
        report.predict(about | {"candidate": "e"})


def test_the_arm_says_which_tails_are_compared():
    """A manifest's arms name their tails; auto is the best recorded one at each T."""
    answers = {
        name: report.predict(
            {
                "table": str(profiles_dir() / "h200x2_vllm"),
                "tails": "h200x2_tails_vllm",
                "hardware": "h200",
                "candidate": name,
            }
        )
        for name in ("column_parallel", "auto")
    }
    rows = tail_timings.read("h200x2_tails_vllm")
    times = {(r["tail"], r["tokens"], r["mode"]): r["median_us"] for r in rows}
    for name, prefill, decode in (
        ("column_parallel", "column_parallel", "column_parallel"),
        ("auto", "token_parallel", "fused"),
    ):
        row = answers[name]["rows"][0]
        assert row["concurrency"] == 8
        assert row["saving_us_per_layer"] == pytest.approx(
            {
                "prefill_step": times["replicated", 8192, "eager"] - times[prefill, 8192, "eager"],
                "decode_step": times["replicated", 8, "graph"] - times[decode, 8, "graph"],
            }
        )


def _pair(candidate):
    """The answer for one arm of the measured recording, from the tails with the same collectives alone."""
    folder = profiles_dir() / "h200x2_vllm"
    assert load_manifest(folder).kind == "measured"
    about = {"table": str(folder), "tails": "h200x2_tails_vllm", "candidate": candidate}
    return report.predict(about)


@pytest.mark.parametrize("candidate", ["column_parallel", "auto"])
def test_the_measured_pairs_on_two_h200_are_predicted_from_the_tails_alone(candidate):
    answer = _pair(candidate)
    assert answer["mae_pp"]["total_tok_per_s"] <= 1.0
    if candidate == "auto":
        assert answer["mae_pp"]["mean_tpot_ms"] <= 1.0
        assert answer["mae_pp"]["mean_ttft_ms"] <= 1.0
    (at_8,) = (row for row in answer["rows"] if row["concurrency"] == 8)
    if candidate == "column_parallel":
        assert all(
            abs(at_8["error_pp"][name]) <= 1.0 for name in ("total_tok_per_s", "mean_ttft_ms", "mean_tpot_ms")
        )


@pytest.mark.parametrize("candidate", ["column_parallel", "auto"])
def test_the_measured_pairs_are_predicted_by_a_model_of_an_earlier_recordings_tails(candidate):
    """The cost model's figures of the H200 are the data sheet's and h200_first_measurements', rows of constants.csv."""
    mae = report.predict({"table": str(profiles_dir() / "h200x2_vllm"), "candidate": candidate})["mae_pp"]
    assert mae["total_tok_per_s"] <= 1.0
    assert mae["mean_tpot_ms"] <= 1.0
    ours = [one for name, one in hardware.built_in_constants().items() if name.startswith("h200.")]
    measured = {one.source.split(":")[0] for one in ours if one.kind == "measured"}
    assert measured == {"profiles/h200_first_measurements"}


@pytest.mark.parametrize(
    ("candidate", "throughput", "tpot"), [("column_parallel", 0.67, 1.07), ("auto", 0.97, 1.18)]
)
def test_the_model_fitted_to_the_servers_collectives_does_not_predict_better(candidate, throughput, tpot):
    """A negative result, and what profiles/README.md says of it."""
    rows = tail_timings.read("h200x2_tails_vllm")
    fitted = {mode: fit.fit(fit.of_series(rows, 2, mode), H200, 2).hardware for mode in ("eager", "graph")}
    eager, graph = (savings.modelled(fitted[mode], 2, candidate=candidate) for mode in ("eager", "graph"))
    mae = predict.predict_table(
        report.table_rows(
            profiles_dir() / "h200x2_vllm", predict.Setup(baseline="replicated", candidate=candidate)
        ),
        lambda tokens, decode: graph(tokens, decode) if decode else eager(tokens, decode),
        predict.Setup(tp=2, layers=12, budget=8192, baseline="replicated", candidate=candidate),
    ).mae_pp()
    assert mae["total_tok_per_s"] == pytest.approx(throughput, abs=0.01)
    assert mae["mean_tpot_ms"] == pytest.approx(tpot, abs=0.01)


@pytest.mark.xfail(
    strict=True,
    reason="1.19 points: at concurrency 32 the measured TPOT is -4.0 %, its interval -6.2 to -1.8",
)
def test_the_measured_tpot_of_column_parallel_is_predicted_within_a_point():
    assert _pair("column_parallel")["mae_pp"]["mean_tpot_ms"] <= 1.0


def test_the_first_end_to_end_figures_of_12_layers_are_predicted_within_a_point():
    """One server start an arm, not interleaved. At concurrency 32 the client's waves fell differently: its TTFT rose by
    16 % and its TPOT fell by 9 %, so there only the throughput says something."""
    table = profiles_dir() / "h200_first_measurements" / "vllm_tp2.csv"
    setup = {"tp": 2, "layers": 12, "budget": 8192, "hardware": "h200", "tails": "h200x2_tails_vllm"}
    arms = {"baseline": "replicated", "candidate": "column_parallel"}
    answer = report.predict({"table": str(table), **setup, **arms})
    assert answer["mae_pp"]["total_tok_per_s"] <= 1.0
    (at_8,) = (row for row in answer["rows"] if row["concurrency"] == 8)
    assert all(
        abs(at_8["error_pp"][name]) <= 1.0 for name in ("total_tok_per_s", "mean_ttft_ms", "mean_tpot_ms")
    )
