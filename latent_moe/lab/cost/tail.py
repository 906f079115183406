"""Each tail as a sum of named terms.

T tokens, H hidden, L latent, tp ranks, bf16. Names of the terms are the same in every tail, so that a plot can stack
them: all_reduce(latent), norm, gemm, epilogue read, add, all_reduce(hidden), ... What runs under something else is
hidden: its term shows only what sticks out.

A collective of n bytes in each rank's full buffer is latency + bytes over link bandwidth. One-shot: every rank reads
every peer's whole buffer. Two-shot: a reduce-scatter and an all-gather, each moving (tp - 1)/tp of the buffer, with a
latency each. The cheaper of the two counts.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from latent_moe.config import KIMI_K3, LatentMoEConfig
from latent_moe.errors import InputError, unknown
from latent_moe.lab.cost.gemm import BYTES, gemm
from latent_moe.lab.cost.hardware import Hardware
from latent_moe.lab.cost.tail_timings import lines
from latent_moe.lab.cost.terms import Cost, Term, check_case
from latent_moe.tail_variants.registry import NAMES

PIPELINE_CHUNKS = 2


def all_reduce_us(n_bytes: float, tp: int, hardware: Hardware) -> float:
    """All-reduce of an n-byte buffer: the cheaper of one-shot and two-shot."""
    one_shot = hardware.collective_latency_us + (tp - 1) * n_bytes / _rate(tp, hardware)
    two_shot = 2 * reduce_scatter_us(n_bytes, tp, hardware)
    return min(one_shot, two_shot) if tp > 1 else 0.0


def reduce_scatter_us(n_bytes: float, tp: int, hardware: Hardware) -> float:
    """Reduce-scatter of an n-byte buffer to n/tp bytes a rank."""
    if tp == 1:
        return 0.0
    return hardware.collective_latency_us + (tp - 1) / tp * n_bytes / _rate(tp, hardware)


def all_gather_us(n_bytes: float, tp: int, hardware: Hardware) -> float:
    """All-gather to an n-byte buffer from n/tp bytes a rank: moves what a reduce-scatter moves."""
    return reduce_scatter_us(n_bytes, tp, hardware)


def _rate(tp: int, hardware: Hardware) -> float:
    if tp < 1:
        raise InputError(f"tp {tp} is not a positive number of ranks")
    return hardware.link_bytes_per_us(max(tp, 2))


COLLECTIVES = {
    "all_reduce": all_reduce_us,
    "reduce_scatter": reduce_scatter_us,
    "all_gather": all_gather_us,
}


@dataclass(frozen=True)
class Case:
    """What is asked of a tail: T tokens on tp ranks of a machine, for a layer's sizes; with or without the collectives."""

    tokens: int
    tp: int
    hardware: Hardware
    hidden: int
    latent: int
    with_collectives: bool = True

    def kernel(self, name: str, elements: float) -> Term:
        """An elementwise kernel that moves `elements` bf16 numbers."""
        us = self.hardware.kernel_us + self.hardware.stream_us(elements * BYTES)
        return Term(name, us, fit_error=self.hardware.kernel_error)

    def norm(self, tokens: int) -> Term:
        """RMSNorm of [tokens, L]: read and write."""
        return self.kernel("norm", 2 * tokens * self.latent)

    def gemm(self, tokens: int, columns: int) -> Term:
        """The up-projection of `tokens` rows to `columns` of the hidden size."""
        return gemm(tokens, columns, self.latent, self.hardware)

    def epilogue_read(self, elements: float) -> Term:
        """What a GEMM that accumulates reads besides: its output, before."""
        return Term("epilogue read", self.hardware.stream_us(elements * BYTES))

    def add(self) -> Term:
        """out = projected + shared, [T, H].

        `projected` was written just before: what of it fits the last-level cache costs no memory traffic.
        """
        elements = self.tokens * self.hidden
        cached = min(1.0, self.hardware.llc_mb * 1e6 / (elements * BYTES))
        return self.kernel("add", (3 - cached) * elements)

    def collective(self, kind: str, what: str, tokens: int | None = None) -> Term:
        """all_reduce, reduce_scatter or all_gather of the latent or hidden partial sums, or of both in one buffer."""
        width = {"latent": self.latent, "hidden": self.hidden, "both": self.latent + self.hidden}[what]
        n_bytes = BYTES * width * (self.tokens if tokens is None else tokens)
        us = COLLECTIVES[kind](n_bytes, self.tp, self.hardware)
        return Term(f"{kind}({what})", us if self.with_collectives else 0.0)


def _under(cover: Term, hidden: Term) -> tuple[Term, Term]:
    """Two terms at the same time: together they take the longer; the shorter is hidden."""
    if hidden.us >= cover.us:
        return replace(cover, us=0.0, hidden_us=cover.us), hidden
    return cover, replace(hidden, us=0.0, hidden_us=hidden.us)


def _replicated(case: Case) -> list[Term]:
    return [
        case.collective("all_reduce", "latent"),
        case.norm(case.tokens),
        case.gemm(case.tokens, case.hidden),
        case.collective("all_reduce", "hidden"),
        case.add(),
    ]


def _column_parallel(case: Case) -> list[Term]:
    own = case.hidden // case.tp
    return [
        case.collective("all_reduce", "latent"),
        case.norm(case.tokens),
        case.gemm(case.tokens, own),
        case.epilogue_read(case.tokens * own),
        case.collective("all_reduce", "hidden"),
    ]


def _overlap(case: Case) -> list[Term]:
    reduce = case.collective("all_reduce", "hidden")
    return [
        case.collective("all_reduce", "latent"),
        case.norm(case.tokens),
        *_under(case.gemm(case.tokens, case.hidden), reduce),
        case.add(),
    ]


def _token_parallel(case: Case) -> list[Term]:
    rows = math.ceil(case.tokens / case.tp)
    return [
        case.collective("reduce_scatter", "latent"),
        case.collective("reduce_scatter", "hidden"),
        case.norm(rows),
        case.gemm(rows, case.hidden),
        case.epilogue_read(rows * case.hidden),
        case.collective("all_gather", "hidden"),
    ]


def _pipelined(case: Case) -> list[Term]:
    chunk = math.ceil(case.tokens / PIPELINE_CHUNKS)
    own = case.hidden // case.tp
    reduce = case.collective("all_reduce", "hidden", chunk)
    compute = case.gemm(chunk, own)
    first = [
        case.collective("all_reduce", "latent"),
        case.norm(case.tokens),
        compute,
        case.epilogue_read(chunk * own),
    ]
    between = [term for _ in range(PIPELINE_CHUNKS - 1) for term in _under(compute, reduce)]
    return [*first, *between, reduce]


def _fused(case: Case) -> list[Term]:
    own = case.hidden // case.tp
    # The norm's kernel goes; its arithmetic hides under the GEMM, which reads the latent anyway.
    return [
        case.collective("all_reduce", "latent"),
        replace(case.gemm(case.tokens, own), name="norm + gemm + accumulate"),
        case.epilogue_read(case.tokens * own),
        case.collective("all_reduce", "hidden"),
    ]


def _joint(case: Case) -> list[Term]:
    return [
        # Both partial sums are read and written once, to stand in one buffer.
        case.kernel("copy", 2 * case.tokens * (case.latent + case.hidden)),
        case.collective("all_reduce", "both"),
        case.norm(case.tokens),
        case.gemm(case.tokens, case.hidden),
        case.epilogue_read(case.tokens * case.hidden),
    ]


def _row_parallel(case: Case) -> list[Term]:
    rows = math.ceil(case.tokens / case.tp)
    return [
        case.collective("all_reduce", "latent"),
        case.norm(rows),
        case.gemm(rows, case.hidden),
        case.collective("all_gather", "hidden"),
        case.collective("all_reduce", "hidden"),
        case.add(),
    ]


_TAILS: dict[str, Callable[[Case], list[Term]]] = {
    "replicated": _replicated,
    "column_parallel": _column_parallel,
    "overlap": _overlap,
    "token_parallel": _token_parallel,
    "pipelined": _pipelined,
    "fused": _fused,
    "joint": _joint,
    "row_parallel": _row_parallel,
}
# Every tail that the model has terms for, whether it can be run here or not.
MODELLED = tuple(_TAILS)
# Those of the registry that the model has terms for.
TAIL_NAMES = tuple(name for name in NAMES if name in _TAILS)
# The model gives the fused kernel the library's GEMM rate. Measured on an H200 it leads up to T = 128 and is slower than
# the library from 256 on (profiles/h200_tp8_shapes).
FUSED_UP_TO = 128


def tail_cost(
    tail: str,
    tokens: int,
    tp: int,
    hardware: Hardware,
    config: LatentMoEConfig = KIMI_K3,
    collectives: bool = True,
) -> Cost:
    """What one tail of one layer takes, as terms in us.

    Raises InputError for an unknown tail, tokens or tp below 1, a layer that is not latent, or a tp that does not
    divide the hidden size. `collectives` False leaves them out, as recordings on one GPU do.
    """
    if tail not in _TAILS:
        raise unknown("tail", tail, _TAILS)
    check_case(tokens, tp, config)
    case = Case(tokens, tp, hardware, config.hidden_size, config.expert_input_size, collectives)
    return Cost(tail, tokens, tp, tuple(_TAILS[tail](case)))


def best_tail(
    tokens: int,
    tp: int,
    hardware: Hardware,
    config: LatentMoEConfig = KIMI_K3,
    tails: Iterable[str] = TAIL_NAMES,
) -> Cost:
    """The cheapest of `tails` that can be judged at this T and tp; of equal ones the first of `tails`."""
    costs = [tail_cost(tail, tokens, tp, hardware, config) for tail in judged(tokens, tp, tails)]
    return min(costs, key=lambda cost: cost.total_us)


def judged(tokens: int, tp: int, tails: Iterable[str] = TAIL_NAMES) -> list[str]:
    """Those of `tails` that the model may choose: one rank has nothing to shard, and `fused` only up to FUSED_UP_TO."""
    if tp == 1:
        return ["replicated"]
    return [name for name in tails if name != "fused" or tokens <= FUSED_UP_TO]


def crossovers(
    tp: int,
    hardware: Hardware,
    config: LatentMoEConfig = KIMI_K3,
    tails: Sequence[str] = TAIL_NAMES,
    up_to: int = 32768,
) -> list[tuple[int, str]]:
    """(first T, tail): which tail is the cheapest from that T on, from T = 1 to `up_to`.

    Between powers of two the first T is found by halving, so one tail's brief lead inside an octave may be missed.
    """

    def best(tokens: int) -> str:
        return best_tail(tokens, tp, hardware, config, tails).tail

    leaders = [(1, best(1))]
    tokens = 1
    while tokens < up_to:
        step = min(2 * tokens, up_to)
        if best(step) != leaders[-1][1]:
            leaders.append((_first(best, leaders[-1][1], tokens, step), best(step)))
        tokens = step
    return leaders


def _first(best: Callable[[int], str], leader: str, low: int, high: int) -> int:
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if best(middle) == leader else (low, middle)
    return high


def crossover_map(
    tokens: Iterable[int], tps: Iterable[int], hardware: Hardware, config: LatentMoEConfig = KIMI_K3
) -> dict[int, dict[int, str]]:
    """{tp: {T: cheapest tail}} for a map of T against tp. Raises InputError as tail_cost does."""
    columns = list(tokens)
    return {tp: {t: best_tail(t, tp, hardware, config).tail for t in columns} for tp in tps}


def measured_best(rows: Iterable[Mapping], tokens: int, mode: str | None = None) -> str:
    """The fastest tail of a recording near `tokens`, each tail read off its own log-log line.

    `rows` have tail, tokens and median_us (and mode: graph or eager, kept apart when `mode` is given). Only tails
    that the cost model knows count. Raises InputError when no row can answer.
    """
    times = {key[0]: line for key, line in lines(rows, mode).items() if key[0] in _TAILS}
    if not times:
        raise InputError(f"the recording has no tail to choose from at {tokens} tokens")
    return min(times, key=lambda tail: times[tail].at(tokens))
