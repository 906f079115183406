"""vLLM's benchmark result JSON, in every key spelling it has had, into `Run`.

Today's client (vllm/benchmarks/serve.py, 0.26 and 0.32) writes request_throughput, output_throughput,
total_token_throughput and mean_*_ms. Older clients wrote request_inthroughput, gave input_throughput and
output_throughput without their sum, no `failed` and no `max_concurrency`.
"""

from collections.abc import Mapping
from typing import Any

from latent_moe.errors import InputError
from latent_moe.lab.results import fields
from latent_moe.lab.results.run import NEEDS_TWO_TOKENS, Run, possible

_SPELLINGS = {
    "total_tok_per_s": ("total_token_throughput",),
    "req_per_s": ("request_throughput", "request_inthroughput"),
    "output_tok_per_s": ("output_throughput",),
    "mean_ttft_ms": ("mean_ttft_ms",),
    "mean_tpot_ms": ("mean_tpot_ms",),
    "mean_itl_ms": ("mean_itl_ms",),
}
# Beside the means: a client whose clock went backwards shows it here even where the mean survives.
_ALSO_CHECKED = ("median_ttft_ms", "median_tpot_ms", "median_itl_ms")
SCHEMA = 1


def looks_like_run(raw: Any) -> bool:
    """Whether a decoded JSON value is a benchmark result: it counts completed requests and has a throughput."""
    rates = (*_SPELLINGS["req_per_s"], *_SPELLINGS["total_tok_per_s"], *_SPELLINGS["output_tok_per_s"])
    return isinstance(raw, dict) and "completed" in raw and any(key in raw for key in rates)


def run_from_json(raw: dict[str, Any], where: str, printed: Mapping[str, str] | None = None) -> Run:
    """One result object into a Run; `printed` gives the text of values that were printed with fixed decimals.

    Raises InputError for a value of the wrong type, a negative count, or an unknown schema of our own object.
    """
    counts = _counts(raw, where)
    values, impossible = _values(raw, where, counts)
    ours = fields.mapping(raw, "latent_moe", where)
    return Run(
        source=where,
        values=values,
        impossible=impossible,
        printed={name: text for name, text in (printed or {}).items() if name in values},
        **counts,
        **_load(raw, ours, where, counts),
        **_ours(ours, where),
        arm=fields.text(ours, "arm", where) or fields.text(raw, "label", where),
        model=fields.text(raw, "model_id", where),
        started=fields.text(ours, "started", where) or fields.text(raw, "date", where) or "",
    )


def _counts(raw: dict[str, Any], where: str) -> dict[str, Any]:
    completed = fields.whole(raw, ("completed",), where)
    failed = fields.whole(raw, ("failed",), where)
    asked = fields.whole(raw, ("num_prompts",), where)
    if asked is None and completed is not None and failed is not None:
        asked = completed + failed
    if failed is None and asked is not None and completed is not None:
        failed = max(asked - completed, 0)
    return {
        "asked": asked,
        "completed": completed,
        "failed": failed,
        "input_tokens": fields.whole(raw, ("total_input_tokens", "total_input"), where),
        "output_tokens": fields.whole(raw, ("total_output_tokens", "total_output"), where),
        "duration_s": fields.number(raw, ("duration",), where),
    }


def _values(
    raw: dict[str, Any], where: str, counts: dict[str, Any]
) -> tuple[dict[str, float], dict[str, float]]:
    """(what was measured, what cannot have been). Nothing is measured where no request succeeded."""
    found = {name: fields.number(raw, keys, where) for name, keys in _SPELLINGS.items()}
    if found["total_tok_per_s"] is None:
        found["total_tok_per_s"] = _sum_of_rates(raw, where, found["output_tok_per_s"])
    checked = {key: fields.number(raw, (key,), where) for key in _ALSO_CHECKED}
    if counts["completed"] == 0:
        return {}, {}
    skipped = NEEDS_TWO_TOKENS if one_token_per_request(counts) else ()
    present = {name: value for name, value in found.items() if value is not None and name not in skipped}
    checked = {key: value for key, value in checked.items() if f"mean{key[6:]}" not in skipped}
    impossible = {name: value for name, value in present.items() if not possible(value)}
    impossible |= {name: value for name, value in checked.items() if value is not None and value < 0}
    return {name: value for name, value in present.items() if possible(value)}, impossible


def _sum_of_rates(raw: dict[str, Any], where: str, output: float | None) -> float | None:
    entering = fields.number(raw, ("input_throughput",), where)
    return None if entering is None or output is None else entering + output


def one_token_per_request(counts: Mapping[str, Any]) -> bool:
    """Whether every successful request ended with its first token, so that no time between tokens exists."""
    completed, output = counts["completed"], counts["output_tokens"]
    return bool(completed) and output is not None and output <= completed


def _load(raw: dict[str, Any], ours: dict[str, Any], where: str, counts: dict[str, Any]) -> dict[str, Any]:
    """isl, osl, concurrency: as asked for where known, else measured (rounded to whole tokens)."""
    concurrency = fields.whole(ours, ("concurrency",), where, least=1)
    if concurrency is None:
        concurrency = fields.whole(raw, ("max_concurrency",), where, least=1)
    return {
        "isl": _length(
            ours, raw, "isl", "random_input_len", counts["input_tokens"], counts["completed"], where
        ),
        "osl": _length(
            ours, raw, "osl", "random_output_len", counts["output_tokens"], counts["completed"], where
        ),
        "concurrency": concurrency,
        "request_rate": fields.text(raw, "request_rate", where),
    }


def _length(
    ours, raw, key: str, nominal: str, tokens: int | None, completed: int | None, where: str
) -> int | None:
    asked = fields.whole(ours, (key,), where, least=1)
    if asked is None:
        asked = fields.whole(raw, (nominal,), where, least=1)
    if asked is None and tokens and completed:
        asked = round(tokens / completed)
    return asked


def _ours(ours: dict[str, Any], where: str) -> dict[str, Any]:
    """The fields that `bench` adds; all None for a file of another tool."""
    schema = fields.whole(ours, ("schema",), where)
    if ours and schema not in (None, SCHEMA):
        raise InputError(f"{where}: latent_moe.schema is {schema}, this version reads {SCHEMA}")
    role = fields.text(ours, "role", where)
    if role not in (None, "baseline", "candidate"):
        raise InputError(f"{where}: latent_moe.role is {role!r}, baseline or candidate was expected")
    return {
        "role": role,
        "pair": fields.whole(ours, ("pair",), where),
        "order": fields.whole(ours, ("order",), where),
        "boot": fields.text(ours, "boot", where),
        "seed": fields.whole(ours, ("seed",), where),
        "cold": fields.flag(ours, "cold", where),
        "prefix_caching": fields.flag(ours, "prefix_caching", where),
        "prefix_cache_hit_tokens": fields.whole(ours, ("prefix_cache_hit_tokens",), where),
        "device": fields.text(ours, "device", where),
    }
