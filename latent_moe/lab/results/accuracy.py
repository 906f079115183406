"""Accuracy files of lm_eval (EleutherAI's lm-evaluation-harness), and whether two accuracies are different.

The JSON has `results[task]["metric,filter"]` with `metric_stderr,filter` beside it, `n-samples[task].effective` and
`n-shot[task]`; before 0.4 the filter was not part of the key and the counts were missing. Two accuracies are compared as
two proportions, from the files or from printed value and standard error.
"""

import math
from dataclasses import dataclass
from pathlib import PurePath
from statistics import NormalDist
from typing import Any

import msgspec

from latent_moe.errors import InputError
from latent_moe.lab.results.run import Count, model_name, same_model, typed

ALPHA = 0.05
_NORMAL = NormalDist()
_RATES = ("exact_match", "acc", "acc_norm", "em", "pass@1")
# What lm_eval writes where it computed no standard error.
_NONE = "N/A"


@dataclass(frozen=True)
class Accuracy:
    """One accuracy: `value` and `stderr` as shares (0 to 1), `questions` None where the file does not say."""

    source: str
    arm: str | None
    task: str
    metric: str
    filter: str
    value: float
    stderr: float | None
    questions: int | None
    shots: int | None
    model: str | None = None
    version: str | None = None
    repeats: int | None = None
    role: str | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        """What two accuracies must share to be comparable at all."""
        return self.task, self.metric, self.filter


class LmEvalResult(msgspec.Struct, frozen=True, rename="kebab"):
    """The keys of lm_eval's file that are read; scores by task and by "metric,filter"."""

    results: dict[str, dict[str, Any]]
    n_samples: dict[str, dict[str, Count | None]] | None = None
    n_shot: dict[str, Count | None] | None = None
    versions: dict[str, Any] | None = None
    configs: dict[str, Any] | None = None
    model_name: str | None = msgspec.field(default=None, name="model_name")


def looks_like_accuracy(raw: Any) -> bool:
    """Whether a decoded JSON value is a result file of lm_eval."""
    return (
        isinstance(raw, dict)
        and isinstance(raw.get("results"), dict)
        and ("versions" in raw or "n-shot" in raw)
    )


def accuracies_from_json(raw: dict[str, Any], where: str) -> list[Accuracy]:
    """Every share of right answers in a result file; other metrics (perplexity, F1) are left out.

    Raises InputError where a share lies outside 0 to 1, a count is no count, or no share has a value.
    """
    result = typed(raw, LmEvalResult, where)
    scores = [(task, key) for task in result.results for key in result.results[task]]
    read = [_accuracy(result, task, key, where) for task, key in scores if key.partition(",")[0] in _RATES]
    given = [item for item in read if item is not None]
    if not given:
        raise InputError(
            f"{where}: {'no accuracy has a value' if read else 'no share of right answers'} in this result"
        )
    return given


def _accuracy(result: LmEvalResult, task: str, key: str, where: str) -> Accuracy | None:
    metric, _, chosen = key.partition(",")
    scores, where_task = result.results[task], f"{where}: {task}"
    value = _share(scores.get(key), metric, where_task)
    if value is None:
        return None
    samples = (result.n_samples or {}).get(task, {})
    questions = samples.get("effective", samples.get("original"))
    if questions == 0:
        raise InputError(f"{where_task}: 0 questions were asked")
    return Accuracy(
        source=where,
        arm=None,
        task=task,
        metric=metric,
        filter=chosen,
        value=value,
        stderr=_share(scores.get(key.replace(metric, f"{metric}_stderr", 1)), f"{metric}_stderr", where_task),
        questions=questions,
        shots=(result.n_shot or {}).get(task),
        model=result.model_name,
        version=_said(result.versions, task),
        repeats=_repeats(result.configs, task),
    )


def _said(table: dict[str, Any] | None, task: str) -> str | None:
    value = (table or {}).get(task)
    return f"{value:g}" if isinstance(value, int | float) else None if value is None else str(value)


def _repeats(configs: dict[str, Any] | None, task: str) -> int | None:
    config = (configs or {}).get(task)
    repeats = config.get("repeats") if isinstance(config, dict) else None
    return repeats if isinstance(repeats, int) else None


def _share(value: Any, name: str, where: str) -> float | None:
    if value is None or value == _NONE or value != value:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        shown = f"{value:g}" if isinstance(value, float) else repr(value)[:40]
        raise InputError(f"{where} {name} is {shown}, a share between 0 and 1 was expected")
    return float(value)


@dataclass(frozen=True)
class AccuracyComparison:
    """`difference` is candidate - baseline as a share, `ci95` its interval; `verdict` different, not_different or
    not_comparable with `reason`. "Not different" means that this many questions cannot tell, not that both are equal.
    """

    task: str
    metric: str
    filter: str
    baseline: float
    candidate: float
    difference: float
    ci95: tuple[float, float] | None
    p_value: float | None
    test: str | None
    verdict: str
    reason: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return vars(self) | {"ci95": list(self.ci95) if self.ci95 else None}


def compare_accuracy(baseline: Accuracy, candidate: Accuracy) -> AccuracyComparison:
    """Two-proportion z test with the pooled error where both files count their questions, else a z test from the
    standard errors. Both treat the arms as independent samples, which is careful where they answer the same questions.

    Raises InputError where the two measure different things.
    """
    if baseline.key != candidate.key:
        raise InputError(f"{baseline.source}, {candidate.source}: {baseline.key} against {candidate.key}")
    reason = _unlike(baseline, candidate)
    if reason:
        return _answer(baseline, candidate, None, None, None, "not_comparable", reason)
    n, m = baseline.questions, candidate.questions
    if n is not None and m is not None:
        p_value, test = two_proportion_p(baseline.value, n, candidate.value, m), "two proportions, pooled z"
    else:
        p_value, test = _standard_error_p(baseline, candidate), "z from standard errors"
    verdict = "different" if p_value < ALPHA else "not_different"
    return _answer(baseline, candidate, _interval(baseline, candidate), p_value, test, verdict, None)


def _unlike(baseline: Accuracy, candidate: Accuracy) -> str | None:
    if None not in (baseline.shots, candidate.shots) and baseline.shots != candidate.shots:
        return f"different prompts: {baseline.shots}-shot against {candidate.shots}-shot"
    if not same_model(baseline.model, candidate.model):
        names = [PurePath(model_name(item.model or "")).name for item in (baseline, candidate)]
        return f"different models: {names[0]} against {names[1]}"
    for name, word in (
        ("questions", "numbers of questions"),
        ("version", "task versions"),
        ("repeats", "repeats"),
    ):
        one, other = getattr(baseline, name), getattr(candidate, name)
        if None not in (one, other) and one != other:
            return f"different {word}: {one} against {other}"
    if any(item.questions is None and not item.stderr for item in (baseline, candidate)):
        return "neither the number of questions nor a standard error is given"
    return None


def two_proportion_p(baseline: float, n: int, candidate: float, m: int) -> float:
    """Two-sided p of equal shares, from the shares of n and m questions (1 where nobody erred or all did)."""
    pooled = (baseline * n + candidate * m) / (n + m)
    error = math.sqrt(pooled * (1 - pooled) * (1 / n + 1 / m))
    return _two_sided(candidate - baseline, error)


def _standard_error_p(baseline: Accuracy, candidate: Accuracy) -> float:
    return _two_sided(candidate.value - baseline.value, math.hypot(_error(baseline), _error(candidate)))


def _two_sided(difference: float, error: float) -> float:
    return 1.0 if error == 0 else 2 * _NORMAL.cdf(-abs(difference) / error)


def _error(item: Accuracy) -> float:
    """lm_eval's standard error of a share divides by n - 1; so does this where the file gives none."""
    if item.stderr is not None:
        return item.stderr
    return math.sqrt(item.value * (1 - item.value) / max((item.questions or 1) - 1, 1))


def _interval(baseline: Accuracy, candidate: Accuracy) -> tuple[float, float]:
    difference = candidate.value - baseline.value
    half = _NORMAL.inv_cdf(1 - ALPHA / 2) * math.hypot(_error(baseline), _error(candidate))
    return difference - half, difference + half


def _answer(baseline, candidate, ci95, p_value, test, verdict, reason) -> AccuracyComparison:
    return AccuracyComparison(
        task=baseline.task,
        metric=baseline.metric,
        filter=baseline.filter,
        baseline=baseline.value,
        candidate=candidate.value,
        difference=candidate.value - baseline.value,
        ci95=ci95,
        p_value=p_value,
        test=test,
        verdict=verdict,
        reason=reason,
    )


def compare_all(accuracies: list[Accuracy], baseline: str, candidate: str) -> list[AccuracyComparison]:
    """Every task, metric and filter that both arms have; the last file wins where an arm has several."""
    sides = [{item.key: item for item in accuracies if item.arm == arm} for arm in (baseline, candidate)]
    return [compare_accuracy(item, sides[1][key]) for key, item in sides[0].items() if key in sides[1]]
