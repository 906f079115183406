"""The closed form against counting, the table it must predict, and what it may not look at."""

from dataclasses import replace

import pytest
from cost_counting import first_tokens, serve

from latent_moe.errors import InputError
from latent_moe.lab.cost import hardware, predict, savings

SETUP = predict.Setup()


@pytest.mark.parametrize(
    ("concurrency", "isl", "budget"),
    [(8, 32, 64), (5, 48, 64), (16, 16, 64), (3, 100, 64), (9, 64, 64), (1, 7, 64)],
)
def test_steps_to_a_first_token_are_counted_right(concurrency, isl, budget):
    counted = first_tokens(concurrency, isl, budget)
    assert predict.steps_to_first_token(concurrency, isl, budget) == pytest.approx(sum(counted) / concurrency)


def test_the_two_numbers_of_the_published_table():
    assert predict.steps_to_first_token(8, 8192, 16384) == pytest.approx(2.75, abs=0.001)
    assert predict.steps_to_first_token(16, 8192, 16384) == pytest.approx(4.875, abs=0.002)


@pytest.mark.parametrize(
    ("concurrency", "isl", "osl"), [(4, 32, 300), (8, 32, 400), (6, 48, 300), (3, 100, 400)]
)
def test_the_end_to_end_saving_is_what_counting_says(concurrency, isl, osl):
    budget, step, decode, less_step, less_decode = 64, 100.0, 10.0, 8.0, 0.5
    before, _ = serve(concurrency, isl, osl, budget, step, decode, 5)
    after, _ = serve(concurrency, isl, osl, budget, step - less_step, decode - less_decode, 5)
    n = predict.prefill_steps_in_a_life(concurrency, isl, budget)
    predicted = n * less_step + (osl - 1 - n) * less_decode
    # A request's own first steps come before its OSL - 1: a share of 1/OSL each.
    assert before - after == pytest.approx(predicted, rel=0.02)


def test_the_closed_form_wears_out_where_prefill_outgrows_the_life():
    budget, isl = 64, 56

    def error(concurrency, osl):
        before, _ = serve(concurrency, isl, osl, budget, 100.0, 10.0, 5)
        after, _ = serve(concurrency, isl, osl, budget, 92.0, 9.5, 5)
        n = predict.prefill_steps_in_a_life(concurrency, isl, budget)
        return abs((n * 8.0 + (osl - 1 - n) * 0.5) / (before - after) - 1)

    # n = 3.5 of 299 steps; n = 52.5 of 11: "decode steps" come out negative, and that is refused.
    assert error(4, 300) < 0.01
    assert error(60, 12) > 0.05
    with pytest.raises(InputError, match="no closed form"):
        predict.check_budget(60, isl, 12, budget)


def test_the_ttft_of_waves_that_stay_together_falls_by_the_prefill_step_s_share():
    counted = first_tokens(8, 32, 64)
    before, after = (step * sum(counted) / 8 for step in (100.0, 92.0))
    row = predict.ArmRow(
        32, 400, 8, "main", {"mean_ttft_ms": before, "mean_tpot_ms": 10.0, "total_tok_per_s": 1.0}
    )
    step_ms = predict.prefill_step_ms([row], 64)
    assert step_ms == pytest.approx(100.0)
    assert before * (1 - 8.0 / step_ms) == pytest.approx(after)


def test_staggered_rows_are_left_out_of_the_prefill_step(published):
    baseline = predict.of_arm(published, "main").values()
    assert predict.prefill_step_ms(baseline, 16384) == pytest.approx(710, abs=5)
    pair = [row for row in baseline if row.concurrency in (8, 16)]
    assert predict.prefill_step_ms(pair, 16384) == predict.prefill_step_ms(baseline, 16384)


def test_the_published_table_is_predicted_from_constants_alone(published, modelled):
    errors = predict.predict_table(published, modelled, SETUP).mae_pp()
    assert errors["total_tok_per_s"] <= 0.5
    assert errors["mean_tpot_ms"] <= 0.5
    assert errors["mean_ttft_ms"] <= 3.0


def test_it_beats_predicting_no_change(published, modelled):
    prediction = predict.predict_table(published, modelled, SETUP)
    nothing = prediction.no_change_pp()
    assert [round(nothing[name], 2) for name in predict.SCORED] == [3.75, 5.3, 3.45]
    assert all(prediction.mae_pp()[name] < nothing[name] for name in predict.SCORED)


@pytest.mark.parametrize("anchor", [8])
def test_anchored_on_one_concurrency_the_other_four_are_predicted(published, modelled, anchor):
    prediction = predict.predict_table(published, modelled, SETUP, anchor)
    errors = prediction.mae_pp()
    assert errors["total_tok_per_s"] <= 0.4
    assert errors["mean_tpot_ms"] <= 0.4
    assert errors["mean_ttft_ms"] <= 0.6
    own = next(row for row in prediction.rows if row.anchor)
    assert own.error_pp["mean_ttft_ms"] == pytest.approx(0, abs=1e-9)
    held = [row for row in prediction.rows if not row.anchor]
    assert len(held) == 4
    mean = sum(abs(row.error_pp["mean_tpot_ms"]) for row in held) / 4
    assert errors["mean_tpot_ms"] == pytest.approx(mean)


def _garbled(rows, spare=None):
    return [
        row
        if row.arm == "main" or row.concurrency == spare
        else replace(
            row, metrics={name: value * (3 + row.concurrency) for name, value in row.metrics.items()}
        )
        for row in rows
    ]


def test_the_fit_never_sees_candidate_rows(published, modelled):
    honest = predict.predict_table(published, modelled, SETUP)
    garbled = predict.predict_table(_garbled(published), modelled, SETUP)
    assert [row.metrics for row in garbled.rows] == [row.metrics for row in honest.rows]
    assert garbled.mae_pp() != honest.mae_pp()


def test_without_candidate_rows_there_is_a_prediction_and_no_error(published, modelled):
    alone = predict.predict_table([row for row in published if row.arm == "main"], modelled, SETUP)
    honest = predict.predict_table(published, modelled, SETUP)
    assert [row.metrics for row in alone.rows] == [row.metrics for row in honest.rows]
    assert set(alone.mae_pp().values()) == {None}


def test_anchoring_sees_the_anchor_s_pair_and_no_other(published, modelled):
    honest = predict.predict_table(published, modelled, SETUP, 8)
    others = predict.predict_table(_garbled(published, spare=8), modelled, SETUP, 8)
    assert [row.metrics for row in others.rows] == [row.metrics for row in honest.rows]
    moved = [
        replace(row, metrics=row.metrics | {"mean_ttft_ms": 1700.0})
        if (row.concurrency, row.arm) == (8, "PR")
        else row
        for row in published
    ]
    assert predict.predict_table(moved, modelled, SETUP, 8).rows[1].metrics != honest.rows[1].metrics


@pytest.mark.parametrize(
    "name",
    [
        "mi355x.kernel_us",
        "mi355x.in_model_ratio",
        "mi355x.stream_efficiency",
        "mi355x.llc_mb",
        "mi355x.gemm_floor_us",
    ],
)
def test_changing_one_constant_moves_the_prediction(published, modelled, tmp_path, name):
    rows = dict(hardware.built_in_constants())
    rows[name] = replace(rows[name], value=rows[name].value * 0.8)
    moved = savings.modelled(hardware.get("mi355x", rows), 8)
    before, after = (predict.predict_table(published, source, SETUP) for source in (modelled, moved))
    assert before.rows[0].metrics != after.rows[0].metrics


def test_the_collectives_are_alike_in_both_arms_and_move_nothing(published, modelled):
    rows = dict(hardware.built_in_constants())
    rows["mi355x.collective_latency_us"] = replace(rows["mi355x.collective_latency_us"], value=20.0)
    moved = savings.modelled(hardware.get("mi355x", rows), 8)
    before, after = (predict.predict_table(published, source, SETUP) for source in (modelled, moved))
    assert after.rows[0].metrics["mean_tpot_ms"] == pytest.approx(
        before.rows[0].metrics["mean_tpot_ms"], rel=1e-9
    )


def test_the_uncertainty_comes_from_the_terms_that_differ(modelled, mi355x):
    saving = modelled(8, True)
    assert saving.error_us == pytest.approx(
        ((mi355x.kernel_error * (saving.us - _gemm_saving(mi355x))) ** 2 + _shard_error(mi355x) ** 2) ** 0.5,
        rel=0.05,
    )


def _gemm_saving(machine):
    from latent_moe.lab.cost.gemm import gemm

    return gemm(8, 7168, 3584, machine).us - gemm(8, 896, 3584, machine).us


def _shard_error(machine):
    from latent_moe.lab.cost.gemm import gemm

    term = gemm(8, 896, 3584, machine)
    return term.us * term.fit_error


def test_the_edges_are_said_in_words():
    row = predict.ArmRow(4096, 256, 128, "main", {"total_tok_per_s": 1, "mean_ttft_ms": 1, "mean_tpot_ms": 1})
    notes = predict.limits(row, 2048)
    assert "prefill" in notes[0]
    assert "longer than the budget" in notes[1]


def test_a_saving_larger_than_the_time_there_is_is_refused(published):
    huge = savings.constant(1e6, 1e6)
    with pytest.raises(InputError, match="exceeds the time"):
        predict.predict_table(published, huge, SETUP)


def test_an_anchor_that_is_not_there_is_refused(published, modelled):
    with pytest.raises(InputError, match="concurrency 9"):
        predict.predict_table(published, modelled, SETUP, 9)


def test_a_traffic_pattern_without_a_table_is_predicted_with_its_uncertainty(modelled):
    row = predict.traffic_row(8, 8192, 1024, 709.0, 29.0, 16384)
    assert row.e2e_ms == pytest.approx(4 * 709 + 1019 * 29)
    gain = predict.predict_row(row, 709.0, modelled, SETUP)
    assert 2 < gain.delta_pct["total_tok_per_s"] < 6
    assert 0 < gain.uncertainty_pp["total_tok_per_s"] < 1
    with pytest.raises(InputError, match="make no request"):
        predict.traffic_row(8, 8192, 1024, -1.0, 29.0, 16384)
