"""What every verb does with its answer: JSON for programs, text for people."""

import json
import math
import sys
from argparse import Namespace
from typing import Any


def clean(value: Any) -> Any:
    """JSON has no NaN or infinity: a number that does not exist becomes null."""
    if isinstance(value, dict):
        return {str(key): clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [clean(item) for item in value]
    if hasattr(value, "item") and not isinstance(value, str | bytes):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def emit(args: Namespace, answer: dict[str, Any], text: str) -> None:
    """Print `answer` as the last line of standard output with --json, `text` otherwise."""
    print(json.dumps(clean(answer)) if args.json else text, flush=True)


def progress(message: str) -> None:
    """A line for whoever waits; standard error, so that it never mixes with an answer."""
    print(message, file=sys.stderr, flush=True)
