"""What vLLM's benchmark client prints, one or many blocks in one log, into `Run`s.

A block runs from the line with "Serving Benchmark Result" to the next full line of "=". The lines before it may name
what the block itself does not: the client's arguments (`Namespace(...)`), the concurrency, the request rate. They count for
the next block only, so that nothing leaks from one run into another.
"""

import re
from typing import Any

from latent_moe.errors import InputError
from latent_moe.lab.results.run import Run
from latent_moe.lab.results.vllm_json import run_from_json

_START = re.compile(r"=+ *Serving Benchmark Result\b")
_END = re.compile(r"={20,}\s*$")
_ARGUMENT = re.compile(r"\b(max_concurrency|num_prompts|random_input_len|random_output_len)=(\d{1,12})\b")
_RATE = re.compile(r"Traffic request rate:\s+(\S+)")

# label in lower case -> (key of the JSON result, name of the metric it prints or None)
_LABELS: dict[str, tuple[str, str | None]] = {
    "successful requests": ("completed", None),
    "failed requests": ("failed", None),
    "maximum request concurrency": ("max_concurrency", None),
    "max request concurrency": ("max_concurrency", None),
    "benchmark duration (s)": ("duration", None),
    "total input tokens": ("total_input_tokens", None),
    "total generated tokens": ("total_output_tokens", None),
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
_COUNTS = ("completed", "failed", "max_concurrency", "total_input_tokens", "total_output_tokens")


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
    arguments = _ARGUMENT.findall(line)
    if arguments and "Namespace(" in line:
        context.clear()
    context.update((key, int(value)) for key, value in arguments)
    if rate := _RATE.search(line):
        context["request_rate"] = rate.group(1).rstrip(".")
    found = _LINE.search(line)
    if found and _LABELS[found.group(1).lower()][0] == "max_concurrency":
        context["max_concurrency"] = _value("max_concurrency", found.group(2))


class _Block:
    """One result block while its lines are read."""

    def __init__(self, where: str, line: int, context: dict[str, Any]):
        self.where, self.line, self.context = where, line, context
        self.keys: dict[str, Any] = {}
        self.printed: dict[str, str] = {}
        self.closed = False

    def take(self, line: str, number: int) -> None:
        found = _LINE.search(line)
        if found is None:
            return
        key, metric = _LABELS[found.group(1).lower()]
        if key in self.keys:
            raise InputError(
                f"{self.where}: line {number} repeats {found.group(1)!r} of the block at line {self.line}"
            )
        self.keys[key] = _value(key, found.group(2))
        if metric:
            self.printed[metric] = found.group(2).replace(",", "")

    def run(self, index: int, total: int) -> Run:
        if self.closed and not self.keys:
            raise InputError(
                f"{self.where}: the block at line {self.line} has no line that the client prints"
            )
        name = self.where if total == 1 else f"{self.where} block {index}"
        run = run_from_json({**self.context, **self.keys}, name, self.printed)
        return Run(**{**vars(run), "truncated": not self.closed})


def _value(key: str, text: str) -> float | int:
    plain = text.replace(",", "")
    return int(plain) if key in _COUNTS and plain.isdecimal() else float(plain)
