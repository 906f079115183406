"""Which runs may be compared, and as what: the one rule of validity, and runs of two arms as independent pairs.

Each guard looks at runs and gives its reasons, or none. A run or a pair with a reason is `not_comparable`, whatever its
numbers say: 40 % failed requests make a server look fast, since the failed ones never competed for it.
"""

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePath
from statistics import median

from latent_moe.lab.results.run import Note, Run, model_name, same_model

# Two arms must have done the same work. Equal seeds give equal prompts, so anything above rounding is a difference.
_SAME_TOKENS_SHARE = 0.001
# Answers of other lengths than asked for: the lengths of the cell are not those of its requests.
_ASKED_TOKENS_SHARE = 0.01
# A chat template's few common tokens may hit a prefix cache; a repeated prompt hits it whole.
_PREFIX_HITS_SHARE = 0.01
# Without the client's word on warm-up: a first run this much slower in TTFT than later ones that agree with each other.
_COLD_RATIO = 1.5
_AGREE_RATIO = 1.2


@dataclass(frozen=True)
class Fault:
    """Why a comparison is not one; `code` is stable, `text` is for people."""

    code: str
    text: str


def run_faults(run: Run) -> list[Fault]:
    """What is wrong with one run by itself."""
    checks = (_failures, _impossible, _other_lengths, _cut_off, _cold, _prefix_hits)
    return [fault for check in checks if (fault := check(run)) is not None]


def _failures(run: Run) -> Fault | None:
    if run.completed == 0:
        return Fault("no_success", "no successful request")
    if run.failed:
        asked = run.asked or (run.completed or 0) + run.failed
        share = (asked - run.failed) / asked
        return Fault("failed_requests", f"{run.failed} of {asked} requests failed (success rate {share:.3g})")
    return None


def _impossible(run: Run) -> Fault | None:
    if not run.impossible:
        return None
    shown = ", ".join(f"{name} = {value:g}" for name, value in run.impossible.items())
    return Fault("impossible_value", f"zero or negative, or beyond any clock: {shown}")


def _other_lengths(run: Run) -> Fault | None:
    """Answers shorter or longer than asked for; failed requests, which explain them, are said already."""
    made = run.tokens_per_request
    if made is None or run.osl is None or run.failed:
        return None
    # Measured lengths are rounded to whole tokens.
    if abs(made[1] - run.osl) <= max(_ASKED_TOKENS_SHARE * run.osl, 0.5):
        return None
    return Fault("other_lengths", f"answers of {made[1]:.4g} tokens where {run.osl} were asked for")


def _cut_off(run: Run) -> Fault | None:
    return Fault("truncated", "the log ends inside this result block") if run.truncated else None


def _cold(run: Run) -> Fault | None:
    return Fault("cold", "cold first run: nothing was sent to this server before it") if run.cold else None


def _prefix_hits(run: Run) -> Fault | None:
    hits, entering = run.prefix_cache_hit_tokens, run.input_tokens
    if not hits or not entering or hits <= _PREFIX_HITS_SHARE * entering:
        return None
    return Fault("warm_prefix", f"warm prefix cache: {hits} of {entering} prompt tokens came from it")


def repeated_prompts(runs: Iterable[Run]) -> dict[str, Fault]:
    """Runs (by source) that sent a server the prompts of an earlier run: same boot, same seed, prefix caching not off."""
    seen: dict[tuple[str, int], Run] = {}
    faults = {}
    for run in sorted(runs, key=lambda item: item.started):
        if run.boot is None or run.seed is None or run.prefix_caching is False:
            continue
        first = seen.setdefault((run.boot, run.seed), run)
        if first is not run:
            faults[run.source] = Fault(
                "warm_prefix", f"warm prefix cache: the prompts of {_name(first)} once more"
            )
    return faults


def first_run_fault(runs: list[Run]) -> Fault | None:
    """A first run that stands out among three or more of one arm and cell, where nobody said whether it was warm."""
    if len(runs) < 3 or any(run.cold is not None or not run.started for run in runs):
        return None
    first, *later = [run.values.get("mean_ttft_ms") for run in sorted(runs, key=lambda item: item.started)]
    known = [value for value in later if value is not None]
    if first is None or len(known) < len(later) or max(known) > _AGREE_RATIO * min(known):
        return None
    ratio = first / median(known)
    if ratio <= _COLD_RATIO:
        return None
    text = f"first run {ratio:.1f} times slower to the first token than the later ones: cold, or they reuse its prompts"
    return Fault("cold", text)


def pair_faults(baseline: Run, candidate: Run) -> list[Fault]:
    """What keeps two runs from being a pair."""
    checks = (
        *(_different_lengths, _different_tokens, _different_load),
        *(_different_endpoint, _different_model, _different_machine),
    )
    return [fault for check in checks if (fault := check(baseline, candidate)) is not None]


def _different_lengths(baseline: Run, candidate: Run) -> Fault | None:
    pairs = ((baseline.isl, candidate.isl), (baseline.osl, candidate.osl))
    if all(one == other or same_length(one, other) for one, other in pairs):
        return None
    left, right = (f"{run.isl}/{run.osl}" for run in (baseline, candidate))
    return Fault("different_lengths", f"different lengths: {left} against {right} tokens")


def _different_tokens(baseline: Run, candidate: Run) -> Fault | None:
    one, other = baseline.tokens_per_request, candidate.tokens_per_request
    if one is None or other is None:
        return None
    if all(
        abs(left - right) <= _SAME_TOKENS_SHARE * max(left, right)
        for left, right in zip(one, other, strict=True)
    ):
        return None
    text = f"different tokens per request: {one[0]:.5g} in and {one[1]:.5g} out against {other[0]:.5g} and {other[1]:.5g}"
    return Fault("different_tokens", text)


def same_length(one: int | None, other: int | None) -> bool:
    """Whether two lengths are one up to the rounding of measured tokens a request."""
    return None not in (one, other) and abs(one - other) < _SAME_TOKENS_SHARE * max(one, other)  # type: ignore[operator, type-var]


def _different_load(baseline: Run, candidate: Run) -> Fault | None:
    words = {"asked": "number of requests", "request_rate": "request rate", "ramp_up": "ramp-up"}
    if "inf" not in (baseline.request_rate, candidate.request_rate):
        # Burstiness shapes the arrivals of a finite rate only.
        words["burstiness"] = "burstiness"
    if None in (baseline.asked, candidate.asked):
        words["completed"] = "number of successful requests"
    for name, word in words.items():
        one, other = getattr(baseline, name), getattr(candidate, name)
        if None not in (one, other) and one != other:
            return Fault("different_load", f"different {word}: {one} against {other}")
    return None


def _different_endpoint(baseline: Run, candidate: Run) -> Fault | None:
    one, other = baseline.backend, candidate.backend
    if None in (one, other) or one == other:
        return None
    return Fault("different_endpoint", f"different endpoints: {one} against {other}")


def _different_model(baseline: Run, candidate: Run) -> Fault | None:
    if same_model(baseline.model, candidate.model):
        return None
    one, other = (PurePath(model_name(run.model or "")).name for run in (baseline, candidate))
    return Fault("different_model", f"different models: {one} against {other}")


def _different_version(baseline: Run, candidate: Run) -> Fault | None:
    """Two arms may be two builds; repeats of one arm may not."""
    one, other = baseline.version, candidate.version
    if None in (one, other) or one == other:
        return None
    return Fault("different_version", f"one arm, two server versions: {one} and {other}")


def _different_machine(baseline: Run, candidate: Run) -> Fault | None:
    if baseline.kind != candidate.kind:
        return Fault("different_kind", f"{baseline.kind} against {candidate.kind} numbers")
    if None in (baseline.device, candidate.device) or baseline.device == candidate.device:
        return None
    return Fault("different_device", f"different devices: {baseline.device} against {candidate.device}")


def unlike_repeats(runs: list[Run]) -> list[Fault]:
    """Repeats of one arm that are not repeats of the same thing."""
    versions = (_different_version(runs[0], run) for run in runs[1:])
    faults = [fault for run in runs[1:] for fault in pair_faults(runs[0], run)]
    return [*faults, *filter(None, versions)][:1]


def pair_notes(baseline: Run, candidate: Run) -> list[Note]:
    """What a reader must know of two runs that may still be compared."""
    checks = (_one_run_twice, _one_name_two_owners, _other_tokenizer, _speculative, _counted_again)
    return [note for check in checks if (note := check(baseline, candidate)) is not None]


def _one_run_twice(baseline: Run, candidate: Run) -> Note | None:
    if baseline.duration_s is None or baseline.kind != "measured":
        return None
    if (baseline.values, baseline.duration_s) != (candidate.values, candidate.duration_s):
        return None
    text = f"{_cell(baseline)}: both arms are the same run, digit for digit ({_name(baseline)}, {_name(candidate)})"
    return Note("identical_runs", text)


def _one_name_two_owners(baseline: Run, candidate: Run) -> Note | None:
    one, other = (model_name(run.model or "") for run in (baseline, candidate))
    if one == other or not all(name.count("/") == 1 and not name.startswith("/") for name in (one, other)):
        return None
    return Note("same_basename", f"{_cell(baseline)}: {one} against {other}: one name, two publishers")


def _other_tokenizer(baseline: Run, candidate: Run) -> Note | None:
    if same_model(baseline.tokenizer, candidate.tokenizer):
        return None
    text = f"tokens were counted by two tokenizers: {baseline.tokenizer} against {candidate.tokenizer}"
    return Note("different_tokenizer", f"{_cell(baseline)}: {text}")


def _speculative(baseline: Run, candidate: Run) -> Note | None:
    steps = [run.tokens_per_step for run in (baseline, candidate)]
    if not any(length and length > 1 for length in steps):
        return None
    shown = " against ".join("none" if length is None else f"{length:.3g}" for length in steps)
    text = f"speculative decoding, accepted tokens a step: {shown}; ITL is per chunk of them, TPOT per token"
    return Note("speculative_decoding", f"{_cell(baseline)}: {text}")


def _counted_again(baseline: Run, candidate: Run) -> Note | None:
    for run in (baseline, candidate):
        if None in (run.retokenized, run.output_tokens):
            continue
        if abs(run.output_tokens - run.retokenized) > _ASKED_TOKENS_SHARE * run.output_tokens:  # type: ignore[operator]
            text = f"{run.output_tokens} tokens generated, {run.retokenized} when the client counted its text again"
            return Note("retokenized", f"{_cell(run)}: {_name(run)}: {text}")
    return None


def _name(run: Run) -> str:
    return PurePath(run.source).name


@dataclass(frozen=True)
class Pair:
    """Runs of both arms that belong together; more than one of an arm are repeats of the same observation."""

    baseline: tuple[Run, ...]
    candidate: tuple[Run, ...]

    def log_ratio(self, metric: str) -> float | None:
        """ln(candidate / baseline), None where an arm lacks the metric."""
        one, other = mean_value(self.baseline, metric), mean_value(self.candidate, metric)
        return None if one is None or other is None else math.log(other) - math.log(one)


def mean_value(runs: tuple[Run, ...], metric: str) -> float | None:
    """Geometric mean over the runs that have the metric (so that deltas recompute from the printed means)."""
    values = [run.values[metric] for run in runs if metric in run.values]
    if len(values) <= 1:
        return values[0] if values else None
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def without_copies(runs: list[Run]) -> tuple[list[Run], list[Note]]:
    """Drop runs that are the same run read twice: they would count as evidence that was never taken."""
    kept, warnings, seen = [], [], set()
    for run in runs:
        counts = (run.completed, run.duration_s)
        identity = (run.arm, run.cell, run.load, run.started, counts, tuple(sorted(run.values.items())))
        if run.duration_s is not None and identity in seen:
            warnings.append(
                Note("duplicate_run", f"{run.source}: the same run as another file, counted once")
            )
            continue
        seen.add(identity)
        kept.append(run)
    return kept, warnings


def pair_runs(baseline: list[Run], candidate: list[Run]) -> tuple[list[Pair], list[Note]]:
    """Pairs of one cell: by their pair number where every run has one, else in the order they were taken."""
    if all(run.pair is not None for run in (*baseline, *candidate)):
        pairs, warnings = _by_number(baseline, candidate)
    else:
        pairs, warnings = _by_order(baseline, candidate)
    merged = _one_per_boot(pairs)
    if len(merged) < len(pairs):
        text = f"{_cell(baseline[0])}: {len(pairs)} pairs share server starts and count as {len(merged)}"
        warnings.append(Note("shared_boot", text))
    return merged, warnings


def _by_number(baseline: list[Run], candidate: list[Run]) -> tuple[list[Pair], list[Note]]:
    sides: dict[int, tuple[list[Run], list[Run]]] = defaultdict(lambda: ([], []))
    for side, runs in enumerate((baseline, candidate)):
        for run in runs:
            sides[run.pair or 0][side].append(run)
    whole = {number: both for number, both in sorted(sides.items()) if all(both)}
    halves = sorted(set(sides) - set(whole))
    warnings = []
    if halves:
        text = f"{_cell(baseline[0])}: pair {', '.join(map(str, halves))} has one arm only and is left out"
        warnings.append(Note("incomplete_pair", text))
    return [Pair(tuple(one), tuple(other)) for one, other in whole.values()], warnings


def _by_order(baseline: list[Run], candidate: list[Run]) -> tuple[list[Pair], list[Note]]:
    ordered = [sorted(runs, key=lambda run: run.started) for runs in (baseline, candidate)]
    pairs = [Pair((one,), (other,)) for one, other in zip(*ordered, strict=False)]
    warnings = []
    if len(pairs) > 1:
        text = "runs carry no pair number: paired in the order they were taken; the interval holds the variance of "
        text += "restarts only if the server was restarted between them"
        warnings.append(Note("paired_by_order", f"{_cell(baseline[0])}: {text}"))
    if len(baseline) != len(candidate):
        text = f"{len(baseline)} against {len(candidate)} runs: the last of the longer side are left out"
        warnings.append(Note("incomplete_pair", f"{_cell(baseline[0])}: {text}"))
    return pairs, warnings


def _one_per_boot(pairs: list[Pair]) -> list[Pair]:
    """Merge pairs that share a server start: what one start brought is in all of them, so they are one observation."""
    groups: list[tuple[set[tuple[str, str]], Pair]] = []
    for pair in pairs:
        boots = {
            (side, run.boot) for side in ("baseline", "candidate") for run in getattr(pair, side) if run.boot
        }
        for other in [group for group in groups if group[0] & boots]:
            groups.remove(other)
            boots |= other[0]
            pair = Pair(other[1].baseline + pair.baseline, other[1].candidate + pair.candidate)
        groups.append((boots, pair))
    return [pair for _, pair in groups]


def _cell(run: Run) -> str:
    load = f"{run.load} requests a second, no limit" if run.load else f"concurrency {run.concurrency}"
    return f"{run.isl}/{run.osl} at {load}"
