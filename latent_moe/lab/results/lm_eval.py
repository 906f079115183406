"""Accuracy files of lm_eval (EleutherAI's lm-evaluation-harness) into `Accuracy`.

Its JSON has `results[task]["metric,filter"]` with `metric_stderr,filter` beside it, `n-samples[task].effective` and
`n-shot[task]`; before 0.4 the filter was not part of the key and the counts were missing.
"""

from dataclasses import dataclass
from typing import Any

from latent_moe.errors import InputError
from latent_moe.lab.results import fields


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

    @property
    def key(self) -> tuple[str, str, str]:
        """What two accuracies must share to be comparable at all."""
        return self.task, self.metric, self.filter


_RATES = ("exact_match", "acc", "acc_norm", "em", "pass@1")


def looks_like_accuracy(raw: Any) -> bool:
    """Whether a decoded JSON value is a result file of lm_eval."""
    return (
        isinstance(raw, dict)
        and isinstance(raw.get("results"), dict)
        and ("versions" in raw or "n-shot" in raw)
    )


def accuracies_from_json(raw: dict[str, Any], where: str) -> list[Accuracy]:
    """Every share of right answers in a result file; other metrics (perplexity, F1) are left out.

    Raises InputError where a share lies outside 0 to 1 or a count is no count.
    """
    results = fields.mapping(raw, "results", where)
    return [
        item for task in results for item in _task(raw, task, fields.mapping(results, task, where), where)
    ]


def _task(raw: dict[str, Any], task: str, scores: dict[str, Any], where: str) -> list[Accuracy]:
    found = []
    for key in scores:
        metric, _, chosen = key.partition(",")
        if metric in _RATES:
            found.append(_accuracy(raw, task, scores, (metric, chosen), where))
    return [item for item in found if item is not None]


def _accuracy(raw, task: str, scores: dict[str, Any], key: tuple[str, str], where: str) -> Accuracy | None:
    metric, chosen = key
    tail = f",{chosen}" if chosen else ""
    value = fields.number(scores, (metric + tail,), where)
    if value is None:
        return None
    if not 0 <= value <= 1:
        raise InputError(f"{where}: {task} {metric} is {value:g}, a share between 0 and 1 was expected")
    samples = fields.mapping(fields.mapping(raw, "n-samples", where), task, where)
    return Accuracy(
        source=where,
        arm=None,
        task=task,
        metric=metric,
        filter=chosen,
        value=value,
        stderr=_stderr(scores, f"{metric}_stderr{tail}", where),
        questions=fields.whole(samples, ("effective", "original"), where, least=1),
        shots=fields.whole(fields.mapping(raw, "n-shot", where), (task,), where),
    )


def _stderr(scores: dict[str, Any], key: str, where: str) -> float | None:
    if scores.get(key) == "N/A":  # what lm_eval writes where it computed none
        return None
    value = fields.number(scores, (key,), where)
    if value is not None and value < 0:
        raise InputError(f"{where}: {key} is {value:g}, below zero")
    return value
