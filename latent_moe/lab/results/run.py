"""One benchmark run as every reader hands it on, the six metrics of the table, and decoded JSON into structs.

A number that does not exist is not in `Run.values`: a run in which no request succeeded has no latency, one token
per request has no time per output token, and neither is 0.
"""

import re
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Annotated, Any, TypeVar

import msgspec

from latent_moe.errors import InputError

# No count of a benchmark is as large, and a double still holds every whole number below.
Count = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]
Size = Annotated[int, msgspec.Meta(ge=1, lt=2**53)]
Label = str | int | float
AnyStruct = TypeVar("AnyStruct")
_PLACE = re.compile(r" - at `\$\.?(.*)`$")
_HUB_CACHE = re.compile(r"models--([^/]+)/snapshots/[^/]+/?$")
_STEP = re.compile(r"\[(\d+)\]|\[\.\.\.\]|([^.\[\]]+)")


@dataclass(frozen=True)
class Metric:
    """One column of the table. `sign` is +1 where more is better and -1 where less is."""

    name: str
    label: str
    unit: str
    sign: int


_METRICS = (
    Metric("total_tok_per_s", "Total tok/s", "tok/s", +1),
    Metric("req_per_s", "Req/s", "req/s", +1),
    Metric("output_tok_per_s", "Output tok/s", "tok/s", +1),
    Metric("mean_ttft_ms", "Mean TTFT (ms)", "ms", -1),
    Metric("mean_tpot_ms", "Mean TPOT (ms)", "ms", -1),
    Metric("mean_itl_ms", "Mean ITL (ms)", "ms", -1),
)
# Beyond these no client measured anything; their ratios would leave the range of a double.
_SMALLEST, _LARGEST = 1e-9, 1e15
METRICS = {metric.name: metric for metric in _METRICS}
PRIMARY = "total_tok_per_s"
NEEDS_TWO_TOKENS = ("mean_tpot_ms", "mean_itl_ms")


def possible(value: float) -> bool:
    """Whether a clock can have measured this rate or time: positive, and of a size that rates and times have."""
    return _SMALLEST <= value <= _LARGEST


@dataclass(frozen=True)
class Run:
    """One run of the benchmark client.

    `values` maps metric names to positive numbers; `printed` holds the text of numbers that were read with a fixed
    number of decimals; `impossible` holds what the client wrote and no clock can have measured (see `possible`).
    `isl` and `osl` are tokens per request (asked for where known, else measured), `concurrency` the client's limit;
    None means unknown, unless `unlimited` says that the client had no limit: then the request rate is the load. `pair` ties
    the runs of two arms, `boot` names a server start, `order` its place in the session. `tokens_per_step` is the mean
    accepted length of speculative decoding, `retokenized` the output tokens that the client counted again itself.
    """

    source: str
    arm: str | None = None
    isl: int | None = None
    osl: int | None = None
    concurrency: int | None = None
    values: dict[str, float] = field(default_factory=dict)
    printed: dict[str, str] = field(default_factory=dict)
    impossible: dict[str, float] = field(default_factory=dict)
    asked: int | None = None
    completed: int | None = None
    failed: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    duration_s: float | None = None
    request_rate: str | None = None
    unlimited: bool = False
    burstiness: float | None = None
    ramp_up: str | None = None
    backend: str | None = None
    tokenizer: str | None = None
    version: str | None = None
    tokens_per_step: float | None = None
    retokenized: int | None = None
    model: str | None = None
    started: str = ""
    truncated: bool = False
    role: str | None = None
    pair: int | None = None
    order: int | None = None
    boot: str | None = None
    seed: int | None = None
    cold: bool | None = None
    prefix_caching: bool | None = None
    prefix_cache_hit_tokens: int | None = None
    kind: str = "measured"
    device: str | None = None

    @property
    def cell(self) -> tuple[int | None, int | None, int | None]:
        """(isl, osl, concurrency): runs are only ever compared within one, and at one `load`."""
        return self.isl, self.osl, self.concurrency

    @property
    def load(self) -> str | None:
        """Requests per second where nothing else limits them, None where the concurrency does."""
        return self.request_rate if self.unlimited else None

    @property
    def known_cell(self) -> bool:
        """False where a length or the concurrency is unknown: such a run is never pooled with another."""
        return None not in (self.isl, self.osl) and (self.concurrency is not None or self.load is not None)

    @property
    def tokens_per_request(self) -> tuple[float, float] | None:
        """Measured (input, output) tokens per successful request, None where the client did not say."""
        if not self.completed or self.input_tokens is None or self.output_tokens is None:
            return None
        return self.input_tokens / self.completed, self.output_tokens / self.completed


@dataclass(frozen=True)
class Note:
    """Something the reader of a table must know; `code` is stable, `message` is for people."""

    code: str
    message: str


def plain_rate(text: str | None) -> str | None:
    """A request rate in one spelling: "10", "0.5" or "inf"; None and text that is no number stay as they are."""
    try:
        return None if text is None else f"{float(text):g}"
    except ValueError:
        return text


def model_name(text: str) -> str:
    """A model's published name: that of a hub cache's folder (models--ORG--NAME/snapshots/HASH) is ORG/NAME."""
    cached = _HUB_CACHE.search(text)
    return cached.group(1).replace("--", "/") if cached else text.rstrip("/")


def same_model(left: str | None, right: str | None) -> bool:
    """Whether two names can be one model; an unknown one can. A folder is known by its last part only."""
    if left is None or right is None:
        return True
    return PurePath(model_name(left)).name == PurePath(model_name(right)).name


def typed(raw: Any, struct: type[AnyStruct], where: str) -> AnyStruct:
    """Decoded JSON as a msgspec struct. Raises InputError with file, key and the value of a wrong type."""
    try:
        # Not strict: tools that go through a spreadsheet or a shell write numbers as text.
        return msgspec.convert(raw, struct, strict=False)
    except msgspec.ValidationError as error:
        wanted = _PLACE.sub("", str(error)).replace("`", "").replace(" | ", " or ")
        place = _PLACE.search(str(error))
        key = place.group(1) if place else ""
        if not key or "[...]" in key:
            raise InputError(f"{where}: {key or 'the file'}: {wanted[:1].lower() + wanted[1:]}") from error
        value = _shown(_at(raw, key))
        raise InputError(f"{where}: {key} is {value} ({wanted[:1].lower() + wanted[1:]})") from error


def _at(raw: Any, place: str) -> Any:
    for index, key in _STEP.findall(place):
        raw = raw[int(index)] if index else raw.get(key) if isinstance(raw, dict) else None
    return raw


def _shown(value: Any) -> str:
    text = type(value).__name__ if isinstance(value, dict | list) else repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
