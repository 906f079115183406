"""Do two arms say the same? Greedy tokens and their logprobs, prompt by prompt, and the logprobs of the prompts' own tokens.

Logprobs of answers are compared only while both arms have said the same tokens: after the first difference the contexts
differ and so would the logprobs of two perfect arms. A model whose best tokens lie close together parts at once by
rounding alone; its prompts' own tokens still have the same contexts in both arms.
"""

import math
from dataclasses import asdict, dataclass
from statistics import mean
from typing import Any

import msgspec

from latent_moe.errors import InputError
from latent_moe.lab.results.run import Label, typed


@dataclass(frozen=True)
class Answer:
    """One greedy completion: its tokens (ids or strings), each chosen token's logprob (None: not given), by how
    many nats it led the second best (empty: not given), and the logprobs of the prompt's tokens after the first (likewise).
    """

    prompt: str
    tokens: tuple[int | str, ...]
    logprobs: tuple[float | None, ...]
    margins: tuple[float | None, ...] = ()
    prompt_logprobs: tuple[float | None, ...] = ()


@dataclass(frozen=True)
class Answers:
    """All greedy completions of one arm, by prompt id."""

    source: str
    arm: str | None
    role: str | None
    by_prompt: dict[str, Answer]


@dataclass(frozen=True)
class Parity:
    """What two arms share. Shares lie between 0 and 1; `max_logprob_diff` is in nats, None without logprobs.

    `same_tokens_share` counts tokens up to each answer's first difference; what follows it counts as different.
    `first_difference` gives its position by prompt, `margins` the baseline's lead of its token over the second best there,
    in nats: a lead as small as the arms' logprob differences is a tie that rounding decides. The `prompt_` fields compare
    the prompts' own tokens (nats; 0 tokens and None where the files have none).
    """

    prompts: int
    identical_prompts: int
    tokens: int
    same_tokens: int
    same_tokens_share: float
    max_logprob_diff: float | None
    first_difference: dict[str, int]
    margins: dict[str, float]
    prompt_tokens: int
    max_prompt_logprob_diff: float | None
    mean_prompt_logprob_diff: float | None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


class AnswersArm(msgspec.Struct, frozen=True):
    """Whose answers they are, as `bench` writes it."""

    arm: str | None = None
    role: str | None = None


class PromptAnswer(msgspec.Struct, frozen=True):
    """One prompt of an answers file, tokens as ids or strings."""

    id: Label | None = None
    prompt: Any = None
    token_ids: list[int | str] | None = None
    tokens: list[int | str] | None = None
    logprobs: list[float | None] | None = None
    top_logprobs: list[dict[str, float | None] | None] | None = None
    prompt_logprobs: list[float | None] | None = None


class AnswersFile(msgspec.Struct, frozen=True):
    """A file of greedy answers."""

    prompts: list[PromptAnswer]
    latent_moe: AnswersArm | None = None


def looks_like_answers(raw: Any) -> bool:
    """Whether a decoded JSON value is a file of greedy answers."""
    return isinstance(raw, dict) and isinstance(raw.get("prompts"), list)


def answers_from_json(raw: dict[str, Any], where: str) -> Answers:
    """A decoded answers file. Raises InputError with the prompt that cannot be used."""
    result = typed(raw, AnswersFile, where)
    about = result.latent_moe or AnswersArm()
    by_prompt: dict[str, Answer] = {}
    for index, item in enumerate(result.prompts):
        key = str(index) if item.id in (None, "") else str(item.id)
        if key in by_prompt:
            raise InputError(f"{where}: prompt {index}: the id {key!r} occurs twice")
        by_prompt[key] = _answer(item, f"{where}: prompt {index}")
    return Answers(where, about.arm, about.role, by_prompt)


def _answer(item: PromptAnswer, where: str) -> Answer:
    tokens = item.token_ids or item.tokens or []
    logprobs = item.logprobs or [None] * len(tokens)
    if len(logprobs) != len(tokens):
        raise InputError(f"{where}: {len(tokens)} tokens, but not as many logprobs")
    return Answer(
        prompt=repr(item.prompt),
        tokens=tuple(tokens),
        logprobs=_finite(logprobs),
        margins=tuple(_lead(best or {}) for best in item.top_logprobs or []),
        prompt_logprobs=_finite(item.prompt_logprobs or []),
    )


def _finite(values: list[float | None]) -> tuple[float | None, ...]:
    return tuple(None if value is None or not math.isfinite(value) else value for value in values)


def _lead(best: dict[str, float | None]) -> float | None:
    """Lead of the best over the second best token at a position; None where fewer are given."""
    ordered = sorted((value for value in _finite([*best.values()]) if value is not None), reverse=True)
    lead = ordered[0] - ordered[1] if len(ordered) > 1 else math.inf
    return lead if math.isfinite(lead) else None


def compare_greedy(baseline: Answers, candidate: Answers) -> Parity:
    """Compare two arms' answers to the same prompts.

    Raises InputError where the prompts differ, or where no token was generated: there is nothing to compare.
    """
    _check_same_prompts(baseline, candidate)
    pairs = {key: (answer, candidate.by_prompt[key]) for key, answer in baseline.by_prompt.items()}
    same = {key: _same_prefix(one, other) for key, (one, other) in pairs.items()}
    longest = {key: max(len(one.tokens), len(other.tokens)) for key, (one, other) in pairs.items()}
    total = sum(longest.values())
    if total == 0:
        raise InputError(f"{baseline.source}, {candidate.source}: no token was generated")
    gaps = [
        gap
        for key, (one, other) in pairs.items()
        for gap in _gaps(one.logprobs[: same[key]], other.logprobs[: same[key]])
    ]
    read = [gap for one, other in pairs.values() for gap in _gaps(one.prompt_logprobs, other.prompt_logprobs)]
    return Parity(
        prompts=len(pairs),
        identical_prompts=sum(same[key] == longest[key] for key in pairs),
        tokens=total,
        same_tokens=sum(same.values()),
        same_tokens_share=sum(same.values()) / total,
        max_logprob_diff=max(gaps, default=None),
        first_difference={key: same[key] for key in pairs if same[key] < longest[key]},
        margins=_margins_at(pairs, same),
        prompt_tokens=len(read),
        max_prompt_logprob_diff=max(read, default=None),
        mean_prompt_logprob_diff=mean(read) if read else None,
    )


def _margins_at(pairs: dict[str, tuple[Answer, Answer]], same: dict[str, int]) -> dict[str, float]:
    """The baseline's lead at each first difference, where it is known."""
    leads = {key: one.margins[same[key]] for key, (one, _) in pairs.items() if same[key] < len(one.margins)}
    return {key: lead for key, lead in leads.items() if lead is not None}


def _check_same_prompts(baseline: Answers, candidate: Answers) -> None:
    if baseline.by_prompt.keys() != candidate.by_prompt.keys():
        raise InputError(f"{baseline.source}, {candidate.source}: the arms answered different prompts")
    for key, answer in baseline.by_prompt.items():
        if answer.prompt != candidate.by_prompt[key].prompt:
            raise InputError(f"{candidate.source}: prompt {key!r} has another text than in {baseline.source}")
        lengths = {len(one.prompt_logprobs) for one in (answer, candidate.by_prompt[key])} - {0}
        if len(lengths) > 1:
            raise InputError(
                f"{candidate.source}: prompt {key!r} has other numbers of prompt_logprobs than in {baseline.source}"
            )


def _same_prefix(one: Answer, other: Answer) -> int:
    """How many tokens are the same before the first that is not."""
    for index, (left, right) in enumerate(zip(one.tokens, other.tokens, strict=False)):
        if left != right:
            return index
    return min(len(one.tokens), len(other.tokens))


def _gaps(one: tuple[float | None, ...], other: tuple[float | None, ...]) -> list[float]:
    """How far apart the two are wherever both are known."""
    both = zip(one, other, strict=False)
    return [math.fabs(left - right) for left, right in both if left is not None and right is not None]
