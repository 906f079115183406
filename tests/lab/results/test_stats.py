"""Intervals against textbook values, verdicts, equal arms that stay equal, and a planted effect that is found."""

import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from latent_moe.errors import InputError
from latent_moe.lab.results import METRICS, PRIMARY, stats
from latent_moe.lab.results.simulate import ASSUMED, Noise, noise_from_runs, session
from tools.studies.aa_study import PAIR_COUNTS, aa_study, power_study, record

HEAVY = Noise(0.02, 0.04, 0.01, 0.02, degrees=3)
QUIET = Noise(0.006, 0.008, 0.004, 0.006)


def test_interval_is_the_paired_t_interval_of_the_log_ratios():
    ratios = [0.01, 0.03, 0.02, 0.05]
    low, high = scipy_stats.ttest_1samp(ratios, 0).confidence_interval(0.95)
    found = stats.paired_interval(ratios)
    assert found.delta_pct == pytest.approx(100 * math.expm1(0.0275))
    assert found.ends == pytest.approx([100 * math.expm1(low), 100 * math.expm1(high)])
    assert (found.pairs, found.method) == (4, "paired t")


def test_swapping_the_arms_turns_the_interval_around():
    ratios = np.array([0.01, 0.03, 0.02, 0.05])
    there, back = stats.paired_interval(ratios), stats.paired_interval(-ratios)
    assert (1 + there.low_pct / 100) * (1 + back.high_pct / 100) == pytest.approx(1)


@pytest.mark.parametrize("pairs", [2, 19, 20, 40])
def test_the_method_is_stated(pairs):
    ratios = np.random.default_rng(1).normal(0.03, 0.01, pairs)
    assert stats.paired_interval(ratios).method == ("paired t" if pairs < 20 else "bootstrap t")


def test_bootstrap_agrees_with_t_on_normal_ratios_and_repeats_itself():
    ratios = np.random.default_rng(2).normal(0.03, 0.01, 40)
    found = stats.paired_interval(ratios)
    low, high = scipy_stats.ttest_1samp(ratios, 0).confidence_interval(0.95)
    assert found.ends == pytest.approx([100 * math.expm1(low), 100 * math.expm1(high)], rel=0.05)
    assert stats.paired_interval(ratios) == found


def test_bootstrap_calls_5_percent_of_equal_arms_different_at_20_pairs():
    rng = np.random.default_rng(3)
    tables = [stats.paired_interval(rng.normal(0, 0.02, 20)) for _ in range(400)]
    decided = sum(stats.verdict(table, +1) != "inconclusive" for table in tables)
    assert decided <= 0.075 * 400  # 5 % and 2.3 standard errors of 400 draws


def test_identical_pairs_have_an_interval_of_one_point():
    assert stats.paired_interval([0.0] * 25).ends == [0.0, 0.0]
    assert stats.verdict(stats.paired_interval([0.0] * 25), +1) == "inconclusive"


def test_one_pair_is_always_inconclusive():
    found = stats.paired_interval([0.5])
    assert found.ends is None
    assert stats.verdict(found, +1) == "inconclusive"


def test_no_pair_is_no_interval():
    with pytest.raises(ValueError, match="no pair"):
        stats.paired_interval([])


@pytest.mark.parametrize(
    ("ratio", "sign", "expected"), [(0.03, 1, "improved"), (0.03, -1, "regressed"), (-0.03, -1, "improved")]
)
def test_verdict_knows_which_way_is_better(ratio, sign, expected):
    assert stats.verdict(stats.paired_interval([ratio, ratio * 1.01, ratio * 0.99]), sign) == expected


def test_power_against_simulation():
    rng = np.random.default_rng(4)
    draws = rng.normal(0.03, 0.03, size=(4000, 8))
    t = draws.mean(1) / scipy_stats.sem(draws, axis=1)
    simulated = np.mean(np.abs(t) > scipy_stats.t.ppf(0.975, 7))
    assert stats.t_power(0.03, 0.03, 8) == pytest.approx(simulated, abs=0.02)


def test_recommendation_grows_with_noise_and_shrinks_with_effect():
    few = [0.0, 0.04, -0.04, 0.02]
    base = stats.recommend_pairs(few)
    assert base.planned_sd_pct > base.sd_pct
    assert stats.recommend_pairs([2 * ratio for ratio in few]).pairs > base.pairs
    assert stats.recommend_pairs(few, effect_pct=6).pairs < base.pairs
    assert stats.recommend_pairs(few, power=0.95).pairs > base.pairs


def test_recommendation_admits_what_it_cannot_say():
    assert stats.recommend_pairs([0.01]).pairs is None
    hopeless = stats.recommend_pairs([0.5, -0.5, 0.4])
    assert hopeless.pairs is None
    assert "too noisy" in hopeless.note
    with pytest.raises(ValueError, match="effect"):
        stats.recommend_pairs([0.01, 0.02], effect_pct=0)


@pytest.mark.parametrize("noise", [ASSUMED, HEAVY], ids=["log-normal", "heavy tails"])
def test_equal_arms_stay_equal_in_2000_comparisons(noise):
    overall = {
        row["metric"]: row for row in aa_study(noise, comparisons=2000, seed=7) if row["pairs"] == "all"
    }
    assert set(overall) == set(METRICS)
    for row in overall.values():
        assert row["comparisons"] == 2000
        assert row["decided_pct"] <= 6.0


def test_a_study_that_could_not_fail_would_prove_nothing():
    rows = aa_study(QUIET, comparisons=60, seed=8, effect_pct=10.0)
    found = next(row for row in rows if row["metric"] == PRIMARY and row["pairs"] == "all")
    assert found["improved"] == 60


def test_planted_three_percent_is_found_with_the_recommended_pairs():
    rows = power_study(QUIET, sessions=150, seed=9)
    assert [row["asked_at"] for row in rows] == ["3", "3", "3 and 10", "3 and 10"]
    for quiet, planted in (rows[:2], rows[2:]):
        assert planted["found_pct"] >= 80
        assert planted["wrong_pct"] == 0
        assert quiet["found_pct"] + quiet["wrong_pct"] <= 9  # 5 % and 2.3 standard errors of 150 draws


def test_noise_is_recovered_from_runs():
    noise = noise_from_runs(session(ASSUMED, 400, 0.0, np.random.default_rng(10)).runs)
    assert noise.ttft_boot == pytest.approx(math.hypot(0.02, 0.04), rel=0.1)
    assert noise.tpot_boot == pytest.approx(math.hypot(0.01, 0.02), rel=0.1)
    with pytest.raises(InputError, match="no arm has two runs"):
        noise_from_runs(session(ASSUMED, 1, 0.0, np.random.default_rng(10)).runs)


def test_study_is_recorded_with_its_manifest(tmp_path, monkeypatch):
    from latent_moe.lab.recordings import load_manifest
    from tools.studies import aa_study as module

    monkeypatch.setattr(
        module, "aa_study", lambda noise, seed: aa_study(noise, comparisons=len(PAIR_COUNTS), seed=seed)
    )
    monkeypatch.setattr(module, "power_study", lambda noise, seed: power_study(QUIET, sessions=3, seed=seed))
    manifest = load_manifest(record(tmp_path / "study"))
    assert manifest.kind == "synthetic"
    assert manifest.parameters["noise"]["ttft_run"] == ASSUMED.ttft_run
    assert all((tmp_path / "study" / name).is_file() for name in manifest.files)


def test_equivalence_needs_an_interval_inside_the_margin():
    near = [0.001, -0.001, 0.002, 0.0, -0.002]
    assert stats.equivalent(near, 1.0) is True
    assert stats.equivalent(near, 0.1) is False
    assert stats.equivalent([0.02, 0.021, 0.019], 1.0) is False
    assert stats.equivalent([0.0], 1.0) is None


def test_equivalence_errs_in_at_most_5_percent_at_the_margin():
    rng = np.random.default_rng(7)
    sessions = np.log1p(0.01) + rng.normal(0, 0.004, size=(2_000, 10))
    assert np.mean([stats.equivalent(session, 1.0) for session in sessions]) <= 0.06


def test_sign_flips_count_every_way_to_turn_the_pairs():
    assert stats.sign_flip_p([0.01, 0.02, 0.03]) == pytest.approx(2 / 8)
    assert stats.sign_flip_p([0.01, -0.01]) == 1.0
    assert stats.sign_flip_p([0.01] * 7) == pytest.approx(2 / 128)
    assert stats.sign_flip_p([0.01] * 8) is None
    assert stats.sign_flip_p([0.01]) is None
