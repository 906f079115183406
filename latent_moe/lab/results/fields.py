"""Typed look-ups in a decoded JSON object: a wrong type is an InputError with file and key, a missing key is None."""

import math
from typing import Any

from latent_moe.errors import InputError

_WHOLE_LIMIT = 2**53  # above it a float no longer holds every whole number, and no count is that large


def number(raw: dict[str, Any], keys: tuple[str, ...], where: str) -> float | None:
    """The first of `keys` that is there, as a finite float. NaN and infinity are numbers that do not exist: None."""
    for key in keys:
        value = raw.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InputError(f"{where}: {key} is {_short(value)}, a number was expected")
        return _finite(value)
    return None


def _finite(value: int | float) -> float | None:
    try:
        as_float = float(value)
    except OverflowError:
        return None
    return as_float if math.isfinite(as_float) else None


def whole(raw: dict[str, Any], keys: tuple[str, ...], where: str, *, least: int = 0) -> int | None:
    """As `number`, for counts: a whole number not below `least`."""
    value = number(raw, keys, where)
    if value is None:
        return None
    if value != int(value) or not least <= value < _WHOLE_LIMIT:
        raise InputError(f"{where}: {keys[0]} is {value:g}, a whole number of at least {least} was expected")
    return int(value)


def text(raw: dict[str, Any], key: str, where: str) -> str | None:
    """A string, or a number written as one; None where missing or empty."""
    value = raw.get(key)
    if value is None or value == "":
        return None
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise InputError(f"{where}: {key} is {_short(value)}, a string was expected")
    return str(value)


def flag(raw: dict[str, Any], key: str, where: str) -> bool | None:
    """true, false or None."""
    value = raw.get(key)
    if value is not None and not isinstance(value, bool):
        raise InputError(f"{where}: {key} is {_short(value)}, true or false was expected")
    return value


def mapping(raw: dict[str, Any], key: str, where: str) -> dict[str, Any]:
    """An object; empty where missing."""
    value = raw.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InputError(f"{where}: {key} is {_short(value)}, an object was expected")
    return value


def _short(value: Any) -> str:
    shown = repr(value) if not isinstance(value, dict | list) else type(value).__name__
    return shown if len(shown) <= 40 else shown[:37] + "..."
