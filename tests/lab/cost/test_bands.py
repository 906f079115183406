"""Bands: wide enough to hold what was published or measured, no wider than asked, made of stated figures alone."""

import math

import pytest

from latent_moe.errors import InputError
from latent_moe.lab.cost import answer, bands, hardware, predict, savings, tail, tail_timings
from latent_moe.lab.recordings import profile_path

PUBLISHED = str(profile_path("mi355x_pr51253"))
WIDEST = {"total_tok_per_s": 1.5, "mean_ttft_ms": 3.5, "mean_tpot_ms": 1.5}


def test_the_bands_of_the_published_table_hold_it_and_are_no_wider_than_asked():
    found = answer.predict({"table": PUBLISHED})
    assert found["inside_band"]["cells"] == 15
    assert found["inside_band"]["inside"] >= 13
    for row in found["rows"]:
        for name, (low, high) in row["band90_pct"].items():
            assert (high - low) / 2 <= WIDEST[name]
            assert low < row["delta_pct"][name] < high


def test_the_bands_of_the_measured_pairs_hold_them():
    table = str(profile_path("h200x2_vllm"))
    inside = [
        answer.predict({"table": table, "candidate": arm})["inside_band"]
        for arm in ("auto", "column_parallel")
    ]
    assert sum(one["cells"] for one in inside) == 12
    assert sum(one["inside"] for one in inside) >= 11


def test_the_residuals_are_those_of_the_recorded_tails():
    machine = hardware.get("h200")
    rows = hardware.built_in_constants()
    for kind, mode, sizes in (("decode", "graph", range(1, 129)), ("prefill", "eager", range(4096, 16385))):
        errors = []
        for name in ("h200x2_tails", "h200x2_tails_vllm"):
            found = {key[0]: line for key, line in tail_timings.lines(tail_timings.read(name), mode).items()}
            before, after = found["replicated"], found["column_parallel"]
            for tokens in sorted(set(before.points) & set(after.points) & set(sizes)):
                measured = before.at(tokens) - after.at(tokens)
                both = (
                    tail.tail_cost(t, tokens, 2, machine).total_us for t in ("replicated", "column_parallel")
                )
                modelled = next(both) - next(both)
                errors.append((modelled - measured) / modelled)
        rms = math.sqrt(sum(error**2 for error in errors) / len(errors))
        assert rms == pytest.approx(rows[f"model.{kind}_residual"].value, rel=0.03)


def test_candidate_rows_move_no_band(published):
    setup = predict.Setup()
    machine = hardware.get("mi355x")
    spread = bands.Bands(
        machine, savings.modelled(machine, 8), lambda other: savings.modelled(other, 8), setup
    )
    honest = answer.predict({"table": PUBLISHED})
    for row, shown in zip(predict.of_arm(published, "main").values(), honest["rows"], strict=True):
        assert spread.of_row(row, honest["prefill_step_ms"]) == shown["band90_pct"]


def test_a_wider_range_gives_a_wider_band(tmp_path):
    text = hardware.CONSTANTS.read_text()
    (tmp_path / "c.csv").write_text(text.replace(",2.2,5.3", ",0.1,9.5"))
    narrow = answer.predict({"table": PUBLISHED})
    wide = answer.predict({"table": PUBLISHED, "constants": str(tmp_path / "c.csv")})
    widths = [
        found["rows"][0]["band90_pct"]["mean_tpot_ms"][1] - found["rows"][0]["band90_pct"]["mean_tpot_ms"][0]
        for found in (narrow, wide)
    ]
    assert widths[1] > 1.1 * widths[0]


def test_the_sensitivity_names_every_constant_with_a_range():
    rows = {row["constant"]: row for row in answer.predict({"table": PUBLISHED})["sensitivity"]}
    assert set(rows) == set(hardware.get("mi355x").ranges)
    assert rows["kernel_us"]["decode_us_low"] < rows["kernel_us"]["decode_us_high"]
    assert rows["llc_mb"]["prefill_us_low"] > rows["llc_mb"]["prefill_us_high"]


def test_what_simpler_answers_score_stands_beside():
    beside = answer.predict({"table": PUBLISHED})["baselines_pp"]
    rounded = {name: round(score["total_tok_per_s"], 2) for name, score in beside.items()}
    assert rounded == {"no_change": 3.75, "copied_row": 0.88, "constant": 0.51, "two_constants": 0.47}


@pytest.mark.parametrize("anchor", [8, 16, 32, 64])
def test_anchored_errors(anchor):
    errors = answer.predict({"table": PUBLISHED, "anchor": anchor})["mae_pp"]
    assert errors["total_tok_per_s"] <= 0.4
    assert errors["mean_tpot_ms"] <= 0.4
    assert errors["mean_ttft_ms"] <= 0.6


def test_an_anchor_that_is_mostly_prefill_is_refused():
    with pytest.raises(InputError, match="100 us of error in their saving would move a decode step"):
        answer.predict({"table": PUBLISHED, "anchor": 128})


@pytest.mark.parametrize("line", ["1,us,vendor,s,2,3", "1,us,vendor,s,0.5,", "1,us,vendor,s,x,2"])
def test_a_range_that_does_not_hold_its_value_is_refused(tmp_path, line):
    (tmp_path / "c.csv").write_text(f"name,value,unit,kind,source,low,high\nm.x,{line}\n")
    with pytest.raises(InputError, match=r"c\.csv line 2"):
        hardware.load_constants(tmp_path / "c.csv")
