"""The tasks of the notebooks: `check("02", answer)` judges what the reader wrote, with the hint that fits, and a solution.

T tokens, H hidden, L latent, tp ranks. A task that is not solved yet is no error: the answer says what is missing.
"""

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from latent_moe.config import KIMI_K3
from latent_moe.errors import unknown
from latent_moe.lab.cost.tail import TAIL_NAMES, judged, tail_cost
from latent_moe.lab.notebooks.tail_task import SOLUTION as TAIL_SOLUTION
from latent_moe.lab.notebooks.tail_task import judge_tail
from latent_moe.lab.notebooks.validity_examples import FAULTY_ARM, FAULTY_COLUMN, runs_with_a_fault
from latent_moe.lab.plots.model_plots import machine_of
from latent_moe.lab.recordings import profile_path
from latent_moe.lab.traces import read_trace
from latent_moe.lab.traces.kernel_names import classify

HARDWARE, TP, LAYERS = "mi355x", 8, 92


@dataclass(frozen=True)
class Verdict:
    """What `check` says: `ok` is None while the task is not solved; `says` is the hint, or what is right."""

    ok: bool | None
    says: str
    solution: str

    @property
    def head(self) -> str:
        """Right, Not yet, or To do."""
        return {True: "Right.", False: "Not yet.", None: "To do."}[self.ok]

    def __repr__(self) -> str:
        return f"{self.head} {self.says}"

    def _repr_html_(self) -> str:
        solution = f"<details><summary>Solution</summary><pre>{html.escape(self.solution)}</pre></details>"
        return f"<p><b>{self.head}</b> {html.escape(self.says)}</p>{solution}"


@dataclass(frozen=True)
class Task:
    """`judge(*answer)` returns the hint for a wrong answer, None for a right one; `solution` can stand in the task's cell."""

    judge: Callable[..., str | None]
    missing: str
    right: str
    solution: str


class NotSolvedYet(Exception):
    """The reader's function gave nothing back."""


def check(notebook: str, *answer: Any) -> Verdict:
    """Judge the task of `notebook` ("01" to "07"). Raises InputError for a number without a task."""
    if notebook not in TASKS:
        raise unknown("task", notebook, TASKS)
    task = TASKS[notebook]
    if any(part is None or part is ... for part in answer):
        return Verdict(None, task.missing, task.solution)
    try:
        hint = task.judge(*answer)
    except NotSolvedYet:
        return Verdict(None, task.missing, task.solution)
    except Exception as error:
        return Verdict(False, f"It stopped with {type(error).__name__}: {error}", task.solution)
    return Verdict(hint is None, task.right if hint is None else hint, task.solution)


def _given(answer: Any) -> Any:
    if answer is None or answer is ...:
        raise NotSolvedYet
    return answer


# 01: bytes of W


def judge_bytes(whole: float, share: float) -> str | None:
    """Bytes of W that a rank reads in a decode step, replicated and sharded."""
    elements = KIMI_K3.hidden_size * KIMI_K3.expert_input_size
    right = 2 * elements * LAYERS
    for value, hint in (
        (elements * LAYERS, "The first number counts elements: a bf16 element has two bytes."),
        (2 * elements, "The first number is that of one layer: a decode step runs through all 92."),
        (right / TP, "The first number is the sharded one: before the change every rank reads the whole W."),
    ):
        if math.isclose(whole, value):
            return hint
    if not math.isclose(whole, right):
        return "The first number: W has H rows and L columns, two bytes each, in every layer."
    if math.isclose(share, whole):
        return "The second number: after the change a rank holds H/tp rows of W, not all of them."
    if not math.isclose(share, right / TP):
        return "The second number: only the rows are divided by tp; L and the number of layers stay."
    return None


# 03: M, N, K from a trace


def judge_shapes(gemm_shapes: Callable[[pd.DataFrame], Sequence]) -> str | None:
    """The shapes of the GEMM calls of two recordings and of a table with calls whose shape is unknown."""
    recording = profile_path("synthetic_k3_tail")
    for tail in ("replicated", "column_parallel"):
        table = read_trace(recording / tail).table
        hint = _shape_hint(table, list(_given(gemm_shapes(table.copy()))), tail)
        if hint:
            return hint
    return None


def _shape_hint(table: pd.DataFrame, answer: list, tail: str) -> str | None:
    gemms = table[(table["kind"] == "gemm") & table["M"].notna()]
    right = sorted({tuple(map(int, row)) for row in gemms[["M", "N", "K"]].itertuples(index=False)})
    if any(pd.isna(list(shape)).any() for shape in answer):
        return "Some shapes are missing values: only kernels of kind gemm have M, N and K; keep those rows."
    shapes = [tuple(map(int, shape)) for shape in answer]
    if len(shapes) > len(set(shapes)):
        return "A shape stands there more than once: a set keeps one of each."
    if shapes == right:
        return None
    if sorted(shapes) == right:
        return "These are the shapes, but not in order: sorted() sorts tuples too."
    if sorted((n, m, k) for m, n, k in shapes) == right:
        return "M and N have changed places: M are the tokens, N the columns of the result."
    return f"In the {tail} recording the shapes are others; compare with table.loc[table['kind'] == 'gemm', ['M', 'N', 'K']]."


# 04: the kind of a kernel from its name

NAMES_AND_WHY = {
    "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x256x64_MI16x16x1": "Cijk is Tensile's word for a matrix product",
    "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT": "nvjet is cuBLAS's family of matrix products",
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "nccl: NCCL's and RCCL's collectives",
    "void vllm::cross_device_reduce_1stage<__hip_bfloat16, 8>": "cross_device_reduce is vLLM's own all-reduce: a collective",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>": "it reduces within one device: no collective",
    "void vllm::rms_norm_kernel<c10::BFloat16>": "a norm is neither",
    "void at::native::vectorized_elementwise_kernel<8, at::native::CUDAFunctor_add<c10::BFloat16>>": "an add is neither",
}


def judge_kind(kind_of: Callable[[str], str]) -> str | None:
    """gemm, collective or other, for each of NAMES_AND_WHY, as the package's own rules say."""
    for name, why in NAMES_AND_WHY.items():
        answer, right = _given(kind_of(name)), kind_in_words(name)
        if answer not in ("gemm", "collective", "other"):
            return f'The answer is "gemm", "collective" or "other", not {answer!r}.'
        if answer != right:
            return f"{name[:60]} is {right}, not {answer}: {why}."
    return None


def kind_in_words(name: str) -> str:
    """The package's kind of a kernel, with all but GEMMs and collectives called "other"."""
    kind = classify([name]).kind[0]
    return kind if kind in ("gemm", "collective") else "other"


# 05: the fault in a comparison


def judge_fault(column: str, arm: str) -> str | None:
    """The column that shows the fault, and the arm at fault."""
    runs = runs_with_a_fault()
    if column not in runs.columns:
        return f"There is no column {column!r}: {', '.join(runs.columns)}."
    if column in ("total_tok_per_s", "mean_tpot_ms"):
        return f"{column} is a result: it differs where the comparison is fair, too. Look at what each run was asked to do, and did."
    if column != FAULTY_COLUMN:
        return f"{column} does not differ between the arms. Which column does? runs.groupby('arm').mean(numeric_only=True) shows it."
    if arm != FAULTY_ARM:
        return f"The column is right. The other arm is at fault: {FAULTY_ARM} did not do what it was asked."
    return None


# 06: a tail for a T


def judge_choice(choose: Callable[[int], str]) -> str | None:
    """Within 10 % of the cheapest tail at every power of two up to 16,384; modelled, eight MI355X."""
    machine = machine_of(HARDWARE)
    for tokens in (2**power for power in range(15)):
        answer = _given(choose(tokens))
        if answer not in TAIL_NAMES:
            return f"{answer!r} is no tail: {', '.join(TAIL_NAMES)}."
        costs = {name: tail_cost(name, tokens, TP, machine).total_us for name in judged(tokens, TP)}
        best = min(costs, key=lambda name: costs[name])
        if answer not in costs:
            return f"At T = {tokens} the model does not judge {answer}: it knows how good that kernel is up to T = 128 only."
        if costs[answer] > 1.1 * costs[best]:
            over = 100 * (costs[answer] / costs[best] - 1)
            return f"At T = {tokens} {answer} takes {over:.0f} % longer than {best} ({costs[answer]:.0f} and {costs[best]:.0f} us)."
    return None


# 07: one row predicted


def judge_row(change_pct: Callable[..., float]) -> str | None:
    """The closed form, for the row C = 8 of the published table with made-up round savings, and for another row."""
    for e2e_ms, prefills, decodes, prefill_us, decode_us, layers in (
        (32_000.0, 4, 1019, 400.0, 12.0, 92),
        (90_000.0, 64, 959, 500.0, 10.0, 61),
    ):
        values = (e2e_ms, prefills, decodes, prefill_us, decode_us, layers)
        answer = _given(change_pct(*values))
        hint = _row_hint(answer, *values)
        if hint:
            return hint
    return None


def _row_hint(answer: float, e2e_ms, prefills, decodes, prefill_us, decode_us, layers) -> str | None:
    def change(saved_ms: float) -> float:
        return 100 * (e2e_ms / (e2e_ms - saved_ms) - 1)

    saved_us = layers * (prefills * prefill_us + decodes * decode_us)
    wrong = (
        (change(saved_us), "The savings are us and E2E is ms: divide by 1,000."),
        (change(saved_us / layers / 1e3), "dP and dd are savings of one layer: multiply by the layers."),
        (change(layers * decodes * decode_us / 1e3), "The prefill steps save, too: n times dP."),
        (change(layers * prefills * prefill_us / 1e3), "The decode steps save, too: their number times dd."),
        (
            -100 * saved_us / 1e3 / e2e_ms,
            "That is the change of E2E. Throughput goes with 1/E2E: E2E / E2E' - 1.",
        ),
        (
            100 * saved_us / 1e3 / e2e_ms,
            "That is the share saved. Throughput goes with 1/E2E: E2E / E2E' - 1.",
        ),
        (change(saved_us / 1e3) / 100, "Per cent: multiply by 100."),
    )
    if math.isclose(answer, change(saved_us / 1e3), rel_tol=1e-4):
        return None
    fitting = (hint for value, hint in wrong if math.isclose(answer, value, rel_tol=1e-4))
    return next(
        fitting,
        f"For E2E = {e2e_ms:.0f} ms the change is {change(saved_us / 1e3):.2f} %, not {answer:.2f} %.",
    )


TASKS = {
    "01": Task(
        judge_bytes,
        "Put two numbers in the place of the dots, then run both cells again.",
        "Each rank read 4.7 GB of W in a decode step, and reads 0.6 GB of it since.",
        "# Task\nreplicated_bytes = 92 * 7168 * 3584 * 2\nsharded_bytes = replicated_bytes / 8",
    ),
    "02": Task(
        judge_tail,
        "sharded_tail returns nothing yet: write its six statements, then run both cells again.",
        "Two real ranks agree with float64, with two all-reduces and no all-gather.",
        TAIL_SOLUTION,
    ),
    "03": Task(
        judge_shapes,
        "gemm_shapes returns nothing yet: write it, then run both cells again.",
        "Both recordings give their shapes.",
        "# Task\ndef gemm_shapes(table):\n"
        '    gemms = table[(table["kind"] == "gemm") & table["M"].notna()]\n'
        '    return sorted(set(gemms[["M", "N", "K"]].astype(int).itertuples(index=False, name=None)))',
    ),
    "04": Task(
        judge_kind,
        "kind_of returns nothing yet: write it, then run both cells again.",
        f"All {len(NAMES_AND_WHY)} names are told apart.",
        "# Task\ndef kind_of(name):\n"
        '    if "nccl" in name or "cross_device_reduce" in name:\n        return "collective"\n'
        '    return "gemm" if name.startswith(("Cijk_", "nvjet_")) else "other"',
    ),
    "05": Task(
        judge_fault,
        "Put a column's and an arm's name in the place of the dots, then run both cells again.",
        "The candidate gave fewer tokens back: its requests were shorter, so its rates say nothing about the tail.",
        f'# Task\ncolumn, arm = "{FAULTY_COLUMN}", "{FAULTY_ARM}"',
    ),
    "06": Task(
        judge_choice,
        "choose returns nothing yet: write it, then run both cells again.",
        "At every T it is within 10 % of the cheapest tail (modelled).",
        '# Task\ndef choose(tokens):\n    return "fused" if tokens < 64 else "token_parallel"',
    ),
    "07": Task(
        judge_row,
        "change_pct returns nothing yet: write it, then run both cells again.",
        "That is the closed form.",
        "# Task\ndef change_pct(e2e_ms, prefill_steps, decode_steps, dP_us, dd_us, layers):\n"
        "    saved_ms = layers * (prefill_steps * dP_us + decode_steps * dd_us) / 1000\n"
        "    return 100 * (e2e_ms / (e2e_ms - saved_ms) - 1)",
    ),
}
