"""The tail of a latent MoE layer found in a recording by what ran and in which order; names of regions are not read.

Every kernel of a device becomes a letter, in the order of their begin: R all-reduce (or a collective whose name does
not tell), S reduce-scatter, A all-gather, B barrier of mapped peer memory, N norm, G GEMM, F fused norm and GEMM, E
elementwise, X anything else; copies are left out. A tail is a pattern of letters: reduce of the latent, norm, exactly
one up-projection, add, reduce. A dense layer has more than one GEMM between two all-reduces and does not fit. Shapes,
where the recording has them, confirm a pattern or reject it, and tell the whole up-projection from a rank's columns.

T tokens, H hidden, L latent, tp ranks; a GEMM is M x N x K.
"""

import json
import re
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from latent_moe.lab.traces import metrics
from latent_moe.lab.traces.kernel_names import collective_type
from latent_moe.lab.traces.steps import in_steps, marked_steps
from latent_moe.lab.traces.table import Kernels, Trace, group_codes

# Tried in this order at each place; E* at the end belongs to the tail's own add.
PATTERNS = (
    ("pipelined", r"(?:RRNG+E?R|RNRG+E?R)NG+E?R|(?:RRNG+E?|RNRG+E?)NRG+E?R|RRNG+E?NG+E?RR"),
    ("row_parallel", r"RRNG+E?A"),
    ("token_parallel", r"SNSG+E+A|SSNG+E+A|BBE?NG+E+B"),
    ("overlap", r"RRNG+E|RNRG+E"),
    ("fused", r"RFR"),
    ("reduced twice", r"RNG+ER|RNG+RE?"),
    ("joint", r"RNG+E?"),
)
_COMPILED = tuple((form, re.compile(pattern)) for form, pattern in PATTERNS)
_LETTERS = {"norm": "N", "gemm": "G", "elementwise": "E"}
_COLLECTIVES = {"reduce_scatter": "S", "all_gather": "A"}
_PARTS = {
    "R": "reduce",
    "S": "reduce",
    "A": "gather",
    "B": "wait for peers",
    "N": "norm",
    "G": "gemm",
    "F": "gemm",
    "E": "add",
}
_FUSED = re.compile(r"fused_up_projection")
_BARRIER = re.compile(r"symmetric_memory.*barrier")


@dataclass(frozen=True)
class TailCall:
    """One tail in a recording: its kernels (rows of the table), and its sizes as far as they are known."""

    form: str
    letters: str
    rows: tuple[int, ...]
    tokens: int | None
    hidden: int | None
    latent: int | None
    columns: int | None
    adds_in_gemm: bool
    reduced_tokens: int | None = None

    @property
    def tp(self) -> int | None:
        """The ranks that share the rows of W or of the step, where the shapes tell."""
        whole, own = (self.hidden, self.columns)
        if self.form == "token_parallel":
            whole, own = self.reduced_tokens, self.tokens
        return whole // own if whole and own and whole != own else None


@dataclass(frozen=True)
class TailFinding:
    """What a recording says of its tail. `form` is a tail's name, "none" or "unknown"; times are ns on one device.

    `layers` is tails per step and device, `share_of_step` their part of the kernel time in steps, `per_step_ns` the
    time in which at least one of their kernels ran, `parts_ns` the durations a step by part. None: not known.
    """

    form: str
    evidence: list[str]
    layers: float | None = None
    share_of_step: float | None = None
    per_step_ns: float | None = None
    parts_ns: dict[str, float] = field(default_factory=dict)
    tokens: dict[int, int] = field(default_factory=dict)
    hidden: int | None = None
    latent: int | None = None
    tp: int | None = None
    steps: int | None = None


def find_tail(trace: Trace) -> TailFinding:
    """Look for tails in the whole recording; "none" with the reason where there is none."""
    kernels = trace.kernels
    calls = tail_calls(kernels)
    if not calls:
        return TailFinding("none", [_why_none(kernels)])
    forms = Counter(call.form for call in calls)
    form, count = forms.most_common(1)[0]
    chosen = [call for call in calls if call.form == form]
    evidence = [_evidence(chosen[0]), f"{count} of {len(calls)} tails have this form"]
    if form == "unknown":
        evidence.append(
            "the add behind the second reduce is replicated's own or the next layer's: no shape tells"
        )
    return _measured(trace, calls, form, evidence, chosen)


def tail_calls(kernels: Kernels) -> list[TailCall]:
    """Every tail of the table, device by device."""
    usable = metrics.placed(kernels)
    devices = group_codes(kernels, metrics.DEVICE)
    letters = _letters(kernels)
    calls = []
    for device in np.unique(devices[usable]):
        rows = np.flatnonzero(usable & (devices == device) & (letters != ""))
        rows = rows[np.argsort(kernels["start_ns"][rows], kind="stable")]
        lanes = group_codes(kernels, ("queue", "stream"))
        between = np.isin(letters, list("RSAB"))
        for lane in np.unique(
            lanes[rows[letters[rows] == "N"]].tolist() + lanes[rows[letters[rows] == "F"]].tolist()
        ):
            calls += _in_lane(kernels, letters, rows[(lanes[rows] == lane) | between[rows]])
    return calls


def _letters(kernels: Kernels) -> np.ndarray:
    """A letter per kernel, "" for a copy."""
    names, kinds = kernels["name"], kernels["kind"]
    by_name = [_letter_of_name(name) for name in names.values] + [None]
    by_kind = ["" if kind == "copy" else _LETTERS.get(kind, "X") for kind in kinds.values] + ["X"]
    special = np.array([letter or "" for letter in by_name])[names.codes]
    return np.where(special != "", special, np.array(by_kind)[kinds.codes])


def _letter_of_name(name: str) -> str | None:
    if _FUSED.search(name):
        return "F"
    if _BARRIER.search(name):
        return "B"
    from latent_moe.lab.traces.kernel_names import classify

    if classify([name]).kind[0] != "collective":
        return None
    return _COLLECTIVES.get(collective_type(name) or "", "R")


def _in_lane(kernels: Kernels, letters: np.ndarray, rows: np.ndarray) -> list[TailCall]:
    text = "".join(letters[rows])
    calls: list[TailCall] = []
    at = 0
    while at < len(text):
        call = _call_at(kernels, text, at, rows) if text[at] in "RSB" else None
        at += len(call.letters) if call else 1
        if call:
            calls.append(call)
    return calls


def _call_at(kernels: Kernels, text: str, at: int, rows: np.ndarray) -> TailCall | None:
    """The tail that begins there; a pattern that its shapes reject leaves the place to the next one."""
    for form, pattern in _COMPILED:
        match = pattern.match(text, at)
        call = _call(kernels, form, match.group(), rows[at : match.end()]) if match else None
        if call:
            return call
    return None


def _call(kernels: Kernels, form: str, letters: str, rows: np.ndarray) -> TailCall | None:
    """The tail with its sizes; None where shapes say that it is none."""
    gemms = [row for row, letter in zip(rows, letters, strict=True) if letter in "GF"]
    m, n, k = (_known(kernels[name][gemms[0]]) for name in "MNK")
    reduces = [_last_size(kernels, row) for row, letter in zip(rows, letters, strict=True) if letter in "RSA"]
    first, last = (reduces[0], reduces[-1]) if reduces else (None, None)
    adds = any("addmm" in (_text(kernels, "op", row) or "") for row in gemms)
    if form == "joint":
        # Any dense layer looks like this without its shapes: one reduce of [T, L + H] is what tells.
        if None in (first, n, k) or first != n + k:  # type: ignore[operator]
            return None
        return TailCall(form, letters, tuple(map(int, rows)), m, n, k, n, adds)
    if first is not None and k is not None and first != k:
        return None
    hidden = n if form in ("overlap", "row_parallel", "token_parallel") else last
    if form == "reduced twice":
        form = _reduced_twice(letters, n, last, adds)
    if form == "pipelined":
        m = m * letters.count("N") if m is not None else None
    whole = _sizes(kernels, rows[0])
    return TailCall(form, letters, tuple(map(int, rows)), m, hidden, k, n, adds, whole[0] if whole else None)


def _reduced_twice(letters: str, n: int | None, hidden: int | None, adds: bool) -> str:
    """replicated or column_parallel: the GEMM's width against what is reduced, else where the add stands."""
    if n is not None and hidden is not None:
        return "replicated" if n == hidden else "column_parallel" if hidden % n == 0 else "unknown"
    if adds or re.search("GE", letters):
        return "column_parallel"
    return "unknown" if letters.endswith("E") else "column_parallel"


def _known(value) -> int | None:
    return int(value) if value >= 0 else None


def _text(kernels: Kernels, column: str, row: int) -> str | None:
    texts = kernels[column]
    code = int(texts.codes[row])
    return texts.values[code] if code >= 0 else None


def _last_size(kernels: Kernels, row: int) -> int | None:
    sizes = _sizes(kernels, row)
    return sizes[-1] if sizes else None


def _sizes(kernels: Kernels, row: int) -> list[int] | None:
    """The sizes of the tensor that a collective works on, from its recorded input dimensions."""
    try:
        dims = json.loads(_text(kernels, "dims", row) or "[]")
    except ValueError:
        return None
    pending = [dims]
    while pending:
        item = pending.pop(0)
        if isinstance(item, list):
            if len(item) > 1 and all(type(size) is int for size in item):
                return item
            pending += item
    return None


def _why_none(kernels: Kernels) -> str:
    present = {kernels["kind"].values[code] for code in np.unique(kernels["kind"].codes) if code >= 0}
    if "collective" not in present:
        return "no collective in the recording, and a tail is two of them around a norm and one GEMM"
    missing = [kind for kind in ("gemm", "norm") if kind not in present]
    if missing and not any(_FUSED.search(name) for name in kernels["name"].values):
        return f"no {' and no '.join(missing)} in the recording"
    return "nowhere do a reduce, a norm, one GEMM and another reduce follow each other"


_WORDS = {
    "R": "all-reduce",
    "S": "reduce-scatter",
    "A": "all-gather",
    "B": "peer barrier",
    "N": "norm",
    "E": "add",
    "F": "fused norm and GEMM",
}


def _evidence(call: TailCall) -> str:
    order = ", ".join(_WORDS.get(letter, "GEMM") for letter in re.sub(r"G+", "G", call.letters))
    shape = (
        f"; GEMM of N = {call.columns}, K = {call.latent}"
        if call.columns and call.latent
        else "; shapes not recorded"
    )
    width = f", H = {call.hidden}" if call.hidden else ""
    adds = ", which adds into its output (addmm, beta = 1)" if call.adds_in_gemm else ""
    return f"in order: {order}{shape}{width}{adds}"


def _measured(
    trace: Trace, calls: list[TailCall], form: str, evidence: list[str], chosen: list[TailCall]
) -> TailFinding:
    kernels = trace.kernels
    marked = marked_steps(trace)
    steps = marked.count if marked else None
    devices = len(np.unique(group_codes(kernels, metrics.DEVICE)[[call.rows[0] for call in calls]]))
    rows = np.array(sorted({row for call in calls for row in call.rows}), dtype=np.int64)
    stepped = metrics.total_ns(in_steps(trace).kernels)
    parts: Counter[str] = Counter()
    for call in calls:
        for row, letter in zip(call.rows, call.letters, strict=True):
            parts[_PARTS[letter]] += int(kernels["dur_ns"][row])
    share = devices * (steps or 1)
    busy = sum(
        metrics.union_ns(kernels["start_ns"][list(call.rows)], kernels["end_ns"][list(call.rows)])
        for call in calls
    )
    return TailFinding(
        form=form,
        evidence=evidence,
        layers=len(calls) / share,
        share_of_step=int(kernels["dur_ns"][rows].sum()) / stepped if stepped else None,
        per_step_ns=busy / share if steps else None,
        parts_ns={part: total / share for part, total in parts.items()},
        tokens=_tokens(form, chosen),
        hidden=next((call.hidden for call in chosen if call.hidden), None),
        latent=next((call.latent for call in chosen if call.latent), None),
        tp=_tp(chosen),
        steps=steps,
    )


def _tp(calls: list[TailCall]) -> int | None:
    return next((call.tp for call in calls if call.tp), None)


def _tokens(form: str, calls: list[TailCall]) -> dict[int, int]:
    """T -> tails at that T. A token_parallel GEMM has T / tp rows; without tp its T is not known."""
    ranks = _tp(calls) if form == "token_parallel" else 1
    return dict(sorted(Counter(call.tokens * ranks for call in calls if call.tokens and ranks).items()))
