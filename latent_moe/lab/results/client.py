"""What vLLM's benchmark client says, as JSON in every key spelling it has had or as printed text, into `Run`s.

Today's client (vllm/benchmarks/serve.py, 0.26 and 0.32) writes request_throughput, output_throughput,
total_token_throughput and mean_*_ms. Older clients wrote request_inthroughput, gave input_throughput and
output_throughput without their sum, no `failed` and no `max_concurrency`.

In a log a block runs from the line with "Serving Benchmark Result" to the next full line of "=". The lines before it
may name what the block itself does not: the client's arguments (`Namespace(...)`), the concurrency, the request rate.
They count for the next block only, so that nothing leaks from one run into another.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from latent_moe.errors import InputError
from latent_moe.lab.results.run import (
    NEEDS_TWO_TOKENS,
    Count,
    Label,
    Run,
    Size,
    plain_rate,
    possible,
    typed,
)

SCHEMA = 1
_RATES = ("request_throughput", "request_inthroughput", "total_token_throughput", "output_throughput")


class BenchFields(msgspec.Struct, frozen=True):
    """What `bench` adds to the client's file, under the key latent_moe."""

    schema: Any = None
    arm: Label | None = None
    role: Label | None = None
    pair: Count | None = None
    order: Count | None = None
    boot: Label | None = None
    seed: Count | None = None
    cold: bool | None = None
    concurrency: Size | None = None
    isl: Size | None = None
    osl: Size | None = None
    prefix_caching: bool | None = None
    prefix_cache_hit_tokens: Count | None = None
    device: Label | None = None
    started: Label | None = None
    vllm_version: Label | None = None


class ServerInfo(msgspec.Struct, frozen=True):
    """What SGLang's client says of its server."""

    model_path: Label | None = None
    version: Label | None = None


class ClientResult(msgspec.Struct, frozen=True):
    """The keys of vLLM's client, old and new, and of SGLang's; what a file lacks is None."""

    completed: Count | None = None
    failed: Count | None = None
    num_prompts: Count | None = None
    max_concurrency: Size | None = None
    random_input_len: Size | None = None
    random_output_len: Size | None = None
    total_input_tokens: Count | None = None
    total_input: Count | None = None
    total_output_tokens: Count | None = None
    total_output: Count | None = None
    duration: float | None = None
    request_throughput: float | None = None
    request_inthroughput: float | None = None
    input_throughput: float | None = None
    output_throughput: float | None = None
    total_token_throughput: float | None = None
    total_throughput: float | None = None
    mean_ttft_ms: float | None = None
    mean_tpot_ms: float | None = None
    mean_itl_ms: float | None = None
    median_ttft_ms: float | None = None
    median_tpot_ms: float | None = None
    median_itl_ms: float | None = None
    request_rate: Label | None = None
    burstiness: float | None = None
    ramp_up_strategy: Label | None = None
    backend: Label | None = None
    endpoint_type: Label | None = None
    tokenizer_id: Label | None = None
    spec_decode_acceptance_length: float | None = None
    accept_length: float | None = None
    total_output_tokens_retokenized: Count | None = None
    server_info: ServerInfo | None = None
    run_number: int | None = None
    label: Label | None = None
    model_id: Label | None = None
    date: Label | None = None
    latent_moe: BenchFields | None = None


def looks_like_run(raw: Any) -> bool:
    """Whether a decoded JSON value is a benchmark result: it counts completed requests and has a throughput."""
    return isinstance(raw, dict) and "completed" in raw and any(key in raw for key in _RATES)


def run_from_json(raw: dict[str, Any], where: str, printed: Mapping[str, str] | None = None) -> Run:
    """One result object into a Run; `printed` gives the text of values that were printed with fixed decimals.

    Raises InputError for a value of the wrong type, a negative count, or an unknown schema of `bench`'s object.
    """
    result = typed({key: value for key, value in raw.items() if value != ""}, ClientResult, where)
    bench = result.latent_moe or BenchFields()
    _check_bench(bench, where)
    input_tokens = _first(result.total_input_tokens, result.total_input)
    output_tokens = _first(result.total_output_tokens, result.total_output)
    asked, failed = _counts(result)
    values, impossible = _values(result, output_tokens, where)
    concurrency = _first(bench.concurrency, result.max_concurrency)
    rate = plain_rate(_text(result.request_rate))
    server = result.server_info or ServerInfo()
    return Run(
        source=where,
        arm=_text(bench.arm) or _text(result.label),
        isl=_length(bench.isl, result.random_input_len, input_tokens, result.completed),
        osl=_length(bench.osl, result.random_output_len, output_tokens, result.completed),
        concurrency=concurrency,
        values=values,
        printed={name: text for name, text in (printed or {}).items() if name in values},
        impossible=impossible,
        asked=asked,
        completed=result.completed,
        failed=failed,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        duration_s=_number(result.duration, "duration", where),
        request_rate=rate,
        # The client writes null for no limit; a file that lacks the key says nothing.
        unlimited=concurrency is None and rate is not None and "max_concurrency" in raw,
        burstiness=result.burstiness,
        ramp_up=_text(result.ramp_up_strategy),
        backend=_text(_first(result.backend, result.endpoint_type)),
        tokenizer=_text(result.tokenizer_id),
        version=_text(_first(bench.vllm_version, server.version)),
        tokens_per_step=_first(result.spec_decode_acceptance_length, result.accept_length),
        retokenized=result.total_output_tokens_retokenized,
        model=_text(_first(result.model_id, server.model_path)),
        started=_text(bench.started) or _text(result.date) or "",
        role=_text(bench.role),
        pair=bench.pair,
        order=bench.order,
        boot=_text(bench.boot),
        seed=bench.seed,
        cold=bench.cold,
        prefix_caching=bench.prefix_caching,
        prefix_cache_hit_tokens=bench.prefix_cache_hit_tokens,
        device=_text(bench.device),
    )


def _check_bench(bench: BenchFields, where: str) -> None:
    if bench.schema not in (None, SCHEMA):
        raise InputError(f"{where}: latent_moe.schema is {bench.schema}, this version reads {SCHEMA}")
    if bench.role not in (None, "baseline", "candidate"):
        raise InputError(f"{where}: latent_moe.role is {bench.role!r}, baseline or candidate was expected")
    if bench.role and not bench.arm:
        raise InputError(f"{where}: latent_moe.arm is {bench.arm!r} in the role of the {bench.role}")


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def _text(value: Label | None) -> str | None:
    return None if value is None or value == "" else str(value)


def _number(value: float | None, key: str, where: str) -> float | None:
    """A finite number; NaN is a number that does not exist. Raises InputError for an infinite one."""
    if value is not None and math.isinf(value):
        raise InputError(f"{where}: {key} is {value}, a number was expected")
    return None if value is None or math.isnan(value) else float(value)


def _counts(result: ClientResult) -> tuple[int | None, int | None]:
    """(requests asked for, requests that failed), each from the others where the file does not give it."""
    asked, failed, completed = result.num_prompts, result.failed, result.completed
    if asked is None and completed is not None and failed is not None:
        asked = completed + failed
    if failed is None and asked is not None and completed is not None:
        failed = max(asked - completed, 0)
    return asked, failed


def _length(stated: int | None, nominal: int | None, tokens: int | None, completed: int | None) -> int | None:
    """Tokens per request: as asked for where known, else measured, rounded to whole tokens."""
    measured = round(tokens / completed) if tokens and completed else None
    return _first(stated, nominal, measured)


def _values(
    result: ClientResult, output_tokens: int | None, where: str
) -> tuple[dict[str, float], dict[str, float]]:
    """(what was measured, what cannot have been). Nothing is measured where no request succeeded."""
    numbers = {
        name: _number(getattr(result, name), name, where)
        for name in ClientResult.__struct_fields__
        if name.endswith(("_ms", "throughput"))
    }
    if result.completed == 0:
        return {}, {}
    # Every successful request may have ended with its first token: no time between tokens exists then.
    short = result.completed and output_tokens is not None and output_tokens <= result.completed
    skipped = NEEDS_TWO_TOKENS if short else ()
    output, entering = numbers["output_throughput"], numbers["input_throughput"]
    summed = entering + output if entering is not None and output is not None else None
    present = {
        "total_tok_per_s": _first(numbers["total_token_throughput"], numbers["total_throughput"], summed),
        "req_per_s": _first(numbers["request_throughput"], numbers["request_inthroughput"]),
        "output_tok_per_s": output,
        **{name: numbers[name] for name in ("mean_ttft_ms", "mean_tpot_ms", "mean_itl_ms")},
    }
    known = {name: value for name, value in present.items() if value is not None and name not in skipped}
    impossible = {name: value for name, value in known.items() if not possible(value)}
    # Beside the means: a client whose clock went backwards shows it here even where the mean survives.
    for name, value in numbers.items():
        if (
            name.startswith("median_")
            and value is not None
            and value < 0
            and f"mean{name[6:]}" not in skipped
        ):
            impossible[name] = value
    return {name: value for name, value in known.items() if possible(value)}, impossible


_START = re.compile(r"=+ *Serving Benchmark Result\b")
_END = re.compile(r"={20,}\s*$")
_ARGUMENT = re.compile(r"\b(max_concurrency|num_prompts|random_input_len|random_output_len)=(\d{1,12})\b")
_RATE = re.compile(r"(?:Traffic request rate|Request rate configured \(RPS\)):\s+(\S+)")
_NO_LIMIT = re.compile(r"Max(?:imum)? request concurrency:\s+(?:not set|None)\s*$", re.IGNORECASE)
_BACKEND = re.compile(r"Backend:\s+(\S+)\s*$")
# With a range the lengths asked for are no request's length: the measured ones count.
_RANGE = re.compile(r"\brandom_range_ratio=(?!0(?:\.0+)?[,)\s])")

# label in lower case -> (key of the JSON result, name of the metric it prints or None)
_LABELS: dict[str, tuple[str, str | None]] = {
    "successful requests": ("completed", None),
    "failed requests": ("failed", None),
    "maximum request concurrency": ("max_concurrency", None),
    "max request concurrency": ("max_concurrency", None),
    "benchmark duration (s)": ("duration", None),
    "total input tokens": ("total_input_tokens", None),
    "total generated tokens": ("total_output_tokens", None),
    "total generated tokens (retokenized)": ("total_output_tokens_retokenized", None),
    "request throughput (req/s)": ("request_throughput", "req_per_s"),
    "input token throughput (tok/s)": ("input_throughput", None),
    "output token throughput (tok/s)": ("output_throughput", "output_tok_per_s"),
    "total token throughput (tok/s)": ("total_token_throughput", "total_tok_per_s"),
    "mean ttft (ms)": ("mean_ttft_ms", "mean_ttft_ms"),
    "median ttft (ms)": ("median_ttft_ms", None),
    "mean tpot (ms)": ("mean_tpot_ms", "mean_tpot_ms"),
    "median tpot (ms)": ("median_tpot_ms", None),
    "mean itl (ms)": ("mean_itl_ms", "mean_itl_ms"),
    "median itl (ms)": ("median_itl_ms", None),
}
# No word before a label: "Peak output token throughput" is another number than "Output token throughput".
_NUMBER = r"[-+]?[\d,]*\.?\d+(?:e[-+]?\d+)?|nan|inf"
_LINE = re.compile(
    rf"(?<![A-Za-z] )\b({'|'.join(map(re.escape, _LABELS))}):\s+({_NUMBER})\s*$", re.IGNORECASE
)
_COUNTS = (
    *("completed", "failed", "max_concurrency", "total_input_tokens", "total_output_tokens"),
    "total_output_tokens_retokenized",
)


def looks_like_client_text(text: str) -> bool:
    """Whether the text holds at least one result block."""
    return _START.search(text) is not None


def runs_from_text(text: str, where: str) -> list[Run]:
    """Every block of a log, in order. Raises InputError with the line where a block contradicts itself."""
    blocks: list[_Block] = []
    block: _Block | None = None
    context: dict[str, Any] = {}
    for number, line in enumerate(re.split(r"[\r\n]", text), start=1):
        if _START.search(line):
            block = _Block(where, number, context)
            blocks.append(block)
            context = {}
        elif block is not None and _END.search(line):
            block.closed = True
            block = None
        elif block is not None:
            block.take(line, number)
        else:
            _note_context(line, context)
    return [item.run(index, len(blocks)) for index, item in enumerate(blocks, start=1)]


def _note_context(line: str, context: dict[str, Any]) -> None:
    """What a line between blocks says about the next run; a new argument list replaces the one before it."""
    arguments = {key: int(value) for key, value in _ARGUMENT.findall(line)}
    if arguments and "Namespace(" in line:
        context.clear()
    if _RANGE.search(line):
        arguments = {key: value for key, value in arguments.items() if not key.startswith("random_")}
    context.update(arguments)
    if rate := _RATE.search(line):
        context["request_rate"] = rate.group(1).rstrip(".")
    printed = _LINE.search(line)
    if printed and _LABELS[printed.group(1).lower()][0] == "max_concurrency":
        context["max_concurrency"] = _value("max_concurrency", printed.group(2))


class _Block:
    """One result block while its lines are read."""

    def __init__(self, where: str, line: int, context: dict[str, Any]):
        self.where, self.line, self.context = where, line, context
        self.keys: dict[str, Any] = {}
        self.printed: dict[str, str] = {}
        self.closed = False

    def take(self, line: str, number: int) -> None:
        printed = _LINE.search(line)
        if printed is None:
            self._note(line)
            return
        key, metric = _LABELS[printed.group(1).lower()]
        if self.keys.get(key) is not None:
            raise InputError(
                f"{self.where}: line {number} repeats {printed.group(1)!r} of the block at line {self.line}"
            )
        self.keys[key] = _value(key, printed.group(2))
        if metric:
            self.printed[metric] = printed.group(2).replace(",", "")

    def _note(self, line: str) -> None:
        """Lines that say how the load was made. vLLM prints the rate inside the block only where it prints every limit."""
        if rate := _RATE.search(line):
            self.keys["request_rate"] = rate.group(1).rstrip(".")
            if "configured" in line and "max_concurrency" not in self.context:
                self.keys.setdefault("max_concurrency", None)
        elif _NO_LIMIT.search(line):
            self.keys["max_concurrency"] = None
        elif backend := _BACKEND.search(line):
            self.keys["backend"] = backend.group(1)

    def run(self, index: int, total: int) -> Run:
        if self.closed and not self.keys:
            raise InputError(
                f"{self.where}: the block at line {self.line} has no line that the client prints"
            )
        name = self.where if total == 1 else f"{self.where} block {index}"
        read = run_from_json({**self.context, **self.keys}, name, self.printed)
        return replace(read, truncated=not self.closed)


def _value(key: str, text: str) -> float | int:
    plain = text.replace(",", "")
    return int(plain) if key in _COUNTS and plain.isdecimal() else float(plain)
