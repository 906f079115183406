"""Notebook 02's task: the reader's sharded tail, run on two real ranks and judged against float64.

T tokens, H hidden, L latent, tp ranks; routed [T, L] and shared [T, H] partial sums, weight W_r [H/tp, L].
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from latent_moe.config import TINY
from latent_moe.errors import LatentMoEError
from latent_moe.lab.microbench.inputs import float64_answer, make_inputs
from latent_moe.parallel import TensorParallel, launch
from latent_moe.tail_variants.registry import TAILS
from latent_moe.tails import apply_norm
from latent_moe.verify.reference import relative_error

TP, TOKENS, BOUND = 2, 8, 1e-5
SOLUTION = """# Task
def sharded_tail(routed, shared, weight, norm, tp):
    latent = tp.all_reduce(routed)
    hidden = apply_norm(norm, latent)
    own = shared[:, tp.columns(shared.shape[1])]
    own += hidden @ weight.T
    out = tp.all_reduce(shared)
    return out"""


@dataclass(frozen=True)
class RankAnswer:
    """What one rank saw: `fault` is an exception in one line, `shape` None where nothing came back."""

    fault: str = ""
    shape: tuple[int, ...] | None = None
    rel_err: float = float("inf")
    mistake: str = ""
    collectives: tuple[str, ...] = ()


class TaskFault(Exception):
    """The reader's function cannot be judged; the message is the hint."""


def judge_tail(sharded_tail: Callable[..., Any]) -> str | None:
    """The hint for a wrong tail, None for a right one. Raises NotSolvedYet of the tasks where nothing comes back."""
    from latent_moe.lab.notebooks.tasks import NotSolvedYet

    try:
        source = inspect.getsource(sharded_tail)
    except (OSError, TypeError):
        return "Define sharded_tail with def, in a cell of its own."
    try:
        answers = launch(_on_rank, TP, source, sharded_tail.__name__, timeout_s=60)
    except LatentMoEError as error:
        return (
            f"The ranks did not end well ({error}). A collective that only some ranks reach waits for ever."
        )
    first = answers[0]
    if first.fault:
        return f"It stopped with {first.fault}"
    if first.shape is None:
        raise NotSolvedYet
    return _hint(answers)


def _hint(answers: list[RankAnswer]) -> str | None:
    first = answers[0]
    whole = (TOKENS, TINY.hidden_size)
    if first.shape != whole:
        return f"It returns {list(first.shape or ())}; every rank must end with all columns, {list(whole)}."
    if any(answer.mistake for answer in answers):
        return next(answer.mistake for answer in answers if answer.mistake)
    worst = max(answer.rel_err for answer in answers)
    if not worst <= BOUND:
        return f"The result is off by {worst:.1e} (norm2, against float64). Look at each statement's shape in the table above."
    if first.collectives != ("all_reduce", "all_reduce"):
        return f"The result is right, with {' and '.join(first.collectives)}: the change needs two all-reduces and nothing else."
    return None


def _on_rank(tp: TensorParallel, source: str, name: str) -> RankAnswer:
    space: dict[str, Any] = {"torch": torch, "apply_norm": apply_norm}
    answer, answered = None, None
    given = make_inputs(TAILS["column_parallel"], TINY, TOKENS, tp, torch.float32)
    tp.issued.clear()
    try:
        exec(source, space)
        answer = space[name](given.routed[0], given.shared[0], given.weights[0], given.norm, tp)
        answered = None if answer is None else answer.clone()
    except Exception as error:
        return RankAnswer(fault=f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")
    collectives = tuple(collective.kind for collective in tp.issued)
    if answered is None:
        return RankAnswer()
    right = float64_answer(TINY, TOKENS, list(range(tp.size)), tp.device, torch.float32)
    if tuple(answered.shape) != tuple(right.shape):
        return RankAnswer(shape=tuple(answered.shape), collectives=collectives)
    rel_err = relative_error(answered, right)
    mistake = "" if rel_err <= BOUND else _mistake(tp, answered)
    return RankAnswer("", tuple(answered.shape), rel_err, mistake, collectives)


def _mistake(tp: TensorParallel, answered: torch.Tensor) -> str:
    """The hint of the known mistake whose result this is; every rank calls the same collectives here."""
    hints = []
    for mistake, hint in _MISTAKES:
        given = make_inputs(TAILS["column_parallel"], TINY, TOKENS, tp, torch.float32)
        wrong = mistake(given.routed[0], given.shared[0], given.weights[0], given.norm, tp)
        if relative_error(answered, wrong.double()) <= BOUND:
            hints.append(hint)
    return hints[0] if hints else ""


def _own(shared: torch.Tensor, tp: TensorParallel) -> torch.Tensor:
    return shared[:, tp.columns(shared.shape[1])]  # [T, H/tp], a view


def _norm_before_the_sum(routed, shared, weight, norm, tp):
    hidden = tp.all_reduce(apply_norm(norm, routed))  # [T, L]
    _own(shared, tp).add_(hidden @ weight.T)
    return tp.all_reduce(shared)


def _routed_never_summed(routed, shared, weight, norm, tp):
    _own(shared, tp).add_(apply_norm(norm, routed) @ weight.T)
    return tp.all_reduce(shared)


def _no_norm(routed, shared, weight, norm, tp):
    del norm
    _own(shared, tp).add_(tp.all_reduce(routed) @ weight.T)
    return tp.all_reduce(shared)


def _shared_never_summed(routed, shared, weight, norm, tp):
    _own(shared, tp).add_(apply_norm(norm, tp.all_reduce(routed)) @ weight.T)
    return shared


def _shared_overwritten(routed, shared, weight, norm, tp):
    _own(shared, tp).copy_(apply_norm(norm, tp.all_reduce(routed)) @ weight.T)
    return tp.all_reduce(shared)


def _first_columns(routed, shared, weight, norm, tp):
    shared[:, : weight.shape[0]] += apply_norm(norm, tp.all_reduce(routed)) @ weight.T
    return tp.all_reduce(shared)


def _added_after_the_sum(routed, shared, weight, norm, tp):
    hidden = apply_norm(norm, tp.all_reduce(routed))  # [T, L]
    out = tp.all_reduce(shared)  # [T, H]
    _own(out, tp).add_(hidden @ weight.T)
    return out


_MISTAKES = (
    (
        _norm_before_the_sum,
        "The norm divides by the size of the complete sum: all-reduce `routed` first, then norm.",
    ),
    (_routed_never_summed, "`routed` is still a partial sum: all-reduce it before the norm."),
    (_no_norm, "The norm is missing between the first all-reduce and the product."),
    (
        _shared_never_summed,
        "`shared` is still a partial sum: the second all-reduce adds it up and gathers the slices.",
    ),
    (
        _shared_overwritten,
        "The shared experts' part of these columns is gone: add into it (+=), do not overwrite it.",
    ),
    (_first_columns, "Every rank writes to the first columns: each has its own, tp.columns(H)."),
    (
        _added_after_the_sum,
        "The slice is added after the last all-reduce, so no other rank ever sees it: add before it.",
    ),
)
