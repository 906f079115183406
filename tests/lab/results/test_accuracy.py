"""Same answers: two accuracies, and greedy tokens with their logprobs."""

import json

import pytest
from scipy import stats

from latent_moe.cli import main
from latent_moe.errors import InputError
from latent_moe.lab.results import Accuracy, read_file, read_text
from latent_moe.lab.results.accuracy import compare_accuracy, compare_all, two_proportion_p
from latent_moe.lab.results.parity import answers_from_json, compare_greedy


def gsm8k(value: float, stderr: float | None = 0.0052, questions: int | None = None, **changes) -> Accuracy:
    base = {
        "source": "x",
        "arm": None,
        "task": "gsm8k",
        "metric": "exact_match",
        "filter": "strict-match",
        "shots": 5,
    }
    return Accuracy(**(base | changes), value=value, stderr=stderr, questions=questions)


def test_lm_eval_file_is_read(fixtures):
    found = read_file(fixtures / "results" / "lm_eval_gsm8k.json").accuracies
    assert [item.filter for item in found] == ["strict-match", "flexible-extract"]
    assert (found[0].questions, found[0].shots) == (1319, 5)
    assert round(found[0].value, 4) == 0.9636
    assert round(found[0].stderr, 4) == 0.0052


def test_a_file_of_todays_lm_eval_is_read(fixtures):
    """Values as lm_eval printed them: 0.625 +- 0.1250 and 0.125 +- 0.0854 over 16 questions, 2-shot."""
    found = {
        item.filter: item for item in read_file(fixtures / "results" / "lm_eval_0_4_13_tiny.json").accuracies
    }
    assert set(found) == {"strict-match", "flexible-extract"}
    assert {(item.task, item.metric, item.questions, item.shots) for item in found.values()} == {
        ("tiny_words", "exact_match", 16, 2)
    }
    assert (found["strict-match"].value, found["strict-match"].stderr) == (0.625, 0.125)
    assert round(found["flexible-extract"].stderr, 4) == 0.0854
    share = found["strict-match"]
    assert share.stderr == pytest.approx((share.value * (1 - share.value) / (share.questions - 1)) ** 0.5)


def test_one_accuracy_alone_is_shown(fixtures, capsys):
    path = str(fixtures / "results" / "lm_eval_0_4_13_tiny.json")
    assert main(["table", path]) == 0
    assert (
        "tiny_words exact_match strict-match: 0.6250 ± 0.1250, 16 questions, 2-shot"
        in capsys.readouterr().out
    )
    assert main(["table", path, "--json"]) == 0
    (first, _) = json.loads(capsys.readouterr().out)["accuracies"]
    assert (first["value"], first["questions"]) == (0.625, 16)


def test_file_before_filters_were_part_of_the_key():
    text = '{"results": {"hellaswag": {"acc": 0.5, "acc_stderr": 0.01, "word_perplexity": 11.0}}, "versions": {}}'
    (found,) = read_text(text, "x").accuracies
    assert (found.metric, found.filter, found.questions, found.shots) == ("acc", "", None, None)


@pytest.mark.parametrize("questions", [1319, None])
def test_the_accuracy_of_the_pull_request_is_not_different_from_a_second_run(questions):
    found = compare_accuracy(gsm8k(0.9636, questions=questions), gsm8k(0.9591, questions=questions))
    assert found.verdict == "not_different"
    assert found.p_value == pytest.approx(0.54, abs=0.02)
    assert found.ci95[0] < 0 < found.ci95[1]


def test_a_real_loss_is_different():
    found = compare_accuracy(gsm8k(0.9636, questions=1319), gsm8k(0.9336, questions=1319))
    assert found.verdict == "different"
    assert found.ci95[1] < 0


def test_z_test_is_the_chi_square_test_of_the_same_counts():
    table = [[1271, 48], [1240, 79]]
    expected = stats.chi2_contingency(table, correction=False).pvalue
    assert two_proportion_p(1271 / 1319, 1319, 1240 / 1319, 1319) == pytest.approx(expected)


def test_nobody_erred():
    assert compare_accuracy(gsm8k(1.0, 0.0, 50), gsm8k(1.0, 0.0, 50)).p_value == 1.0


def test_what_cannot_be_compared():
    assert "5-shot against 20-shot" in compare_accuracy(gsm8k(0.9), gsm8k(0.9, shots=20)).reason
    assert compare_accuracy(gsm8k(0.9, None), gsm8k(0.9)).verdict == "not_comparable"
    with pytest.raises(InputError, match="flexible"):
        compare_accuracy(gsm8k(0.9), gsm8k(0.9, filter="flexible-extract"))


@pytest.mark.parametrize("value", [1.2, -0.1, "high"])
def test_impossible_accuracy_is_refused(value):
    raw = {"results": {"gsm8k": {"exact_match,strict-match": value}}, "versions": {}}
    with pytest.raises(InputError):
        read_text(json.dumps(raw), "x")


def test_arms_meet_by_task_and_filter():
    items = [gsm8k(0.96, arm="a"), gsm8k(0.95, arm="b"), gsm8k(0.94, arm="b", filter="flexible-extract")]
    (found,) = compare_all(items, "a", "b")
    assert (found.baseline, found.candidate) == (0.96, 0.95)


def answers(*prompts: dict, arm: str = "a"):
    listed = [{"id": f"p{k}", "prompt": f"prompt {k}"} | prompt for k, prompt in enumerate(prompts)]
    return answers_from_json({"latent_moe": {"arm": arm}, "prompts": listed}, arm)


def test_same_answers():
    one = answers({"token_ids": [5, 6, 7], "logprobs": [-0.1, -0.2, -0.3]})
    other = answers({"token_ids": [5, 6, 7], "logprobs": [-0.1, -0.25, -0.3]}, arm="b")
    found = compare_greedy(one, other)
    assert (found.same_tokens_share, found.identical_prompts) == (1.0, 1)
    assert found.max_logprob_diff == pytest.approx(0.05)


def test_what_follows_a_difference_does_not_count_as_same():
    one = answers({"token_ids": [5, 6, 7, 8], "logprobs": [-1, -1, -1, -1]}, {"tokens": ["a"]})
    other = answers({"token_ids": [5, 9, 7, 8], "logprobs": [-1.5, -9, -9, -9]}, {"tokens": ["a"]}, arm="b")
    found = compare_greedy(one, other)
    assert (found.same_tokens, found.tokens) == (2, 5)
    assert found.first_difference == {"p0": 1}
    assert found.max_logprob_diff == pytest.approx(
        0.5
    )  # only before the difference: contexts are equal there


def test_a_tie_is_told_from_a_difference():
    best = [{"a": -0.1, "b": -4.0}, {"c": -0.70, "d": -0.71}]
    one = answers({"tokens": ["a", "c"], "top_logprobs": best})
    found = compare_greedy(one, answers({"tokens": ["a", "d"]}, arm="b"))
    assert found.margins == pytest.approx({"p0": 0.01})
    assert compare_greedy(one, one).margins == {}
    with pytest.raises(InputError, match="top_logprobs"):
        answers({"tokens": ["a"], "top_logprobs": [3]})


def test_prompts_are_compared_however_early_the_answers_part():
    one = answers({"token_ids": [5], "prompt_logprobs": [-7.0, -6.0]}, {"token_ids": [1]})
    other = answers({"token_ids": [9], "prompt_logprobs": [-7.1, -6.3]}, {"token_ids": [1]}, arm="b")
    found = compare_greedy(one, other)
    assert (found.same_tokens, found.prompt_tokens) == (1, 2)
    assert found.max_prompt_logprob_diff == pytest.approx(0.3)
    assert found.mean_prompt_logprob_diff == pytest.approx(0.2)
    without = compare_greedy(answers({"token_ids": [5]}), answers({"token_ids": [5]}, arm="b"))
    assert (without.prompt_tokens, without.max_prompt_logprob_diff) == (0, None)
    for wrong in ("none", {}, 0, False, ""):
        with pytest.raises(InputError, match=r"prompt_logprobs is .*expected array"):
            answers({"token_ids": [5], "prompt_logprobs": wrong})
    with pytest.raises(InputError, match=r"prompt_logprobs\[1\] is 'x'"):
        answers({"token_ids": [5], "prompt_logprobs": [-1, "x"]})
    with pytest.raises(InputError, match="other numbers of prompt_logprobs"):
        compare_greedy(
            one, answers({"token_ids": [9], "prompt_logprobs": [-7.1]}, {"token_ids": [1]}, arm="b")
        )


def test_a_lead_beyond_all_numbers_is_none():
    best = [{"a": 1e308, "b": -1e308}]
    one = answers({"tokens": ["a"], "top_logprobs": best})
    assert compare_greedy(one, answers({"tokens": ["b"]}, arm="b")).margins == {}


def test_one_arm_that_stops_early_is_not_the_same():
    found = compare_greedy(answers({"token_ids": [5, 6, 7]}), answers({"token_ids": [5, 6]}, arm="b"))
    assert found.same_tokens_share == pytest.approx(2 / 3)
    assert found.max_logprob_diff is None


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda: answers({"token_ids": [1]}, {"token_ids": [1]}, arm="b"), "different prompts"),
        (lambda: answers({"token_ids": [1], "prompt": "another"}, arm="b"), "another text"),
        (lambda: answers({"token_ids": [1], "logprobs": [-1, -2]}, arm="b"), "not as many logprobs"),
        (lambda: answers({"token_ids": [True]}, arm="b"), r"token_ids\[0\] is True"),
    ],
)
def test_answers_that_cannot_be_compared(other, message):
    with pytest.raises(InputError, match=message):
        compare_greedy(answers({"token_ids": [1]}), other())


def test_no_tokens_at_all():
    with pytest.raises(InputError, match="no token"):
        compare_greedy(answers({"token_ids": []}), answers({"token_ids": []}, arm="b"))
