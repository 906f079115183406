"""What must never reach a result, a log or a printed command: tokens that an arm's environment or arguments carry."""

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from urllib.parse import quote

# TOKENIZERS_PARALLELISM, MAX_TOKENS and GIT_AUTHOR_NAME hold no secret: their values are words that results need.
_WORD = r"token(?!s|iz)|secret|passw(?:or)?d|credential|api[_-]?key|access[_-]?key|private[_-]?key"
_NAME = re.compile(rf"{_WORD}|auth(?!or)|private", re.IGNORECASE)
_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_OPTION = re.compile(r"^--(api-key|hf-token|header)$")
# name=value, name: value, ?name=value and "name": "value" inside one argument, a URL or JSON.
_NAMED = re.compile(
    rf"""(?:{_WORD}|authorization)[\d_-]*["']?\s*[=:]\s*["']?(?:bearer\s+|basic\s+)?([^\s"'&,;{{}}]+)""",
    re.IGNORECASE,
)
_IN_URL = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s:@]*:([^/\s@]+)@", re.IGNORECASE)
# Tokens that their issuer's prefix gives away, whatever variable they are in.
_SHAPE = re.compile(
    r"\b(?:hf_\w{6,}|sk-[\w-]{16,}|gh[opsu]_\w{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}|AKIA[0-9A-Z]{12,})"
)
_SHORTEST = 4
_PLAIN = ("true", "false", "none", "null")
HIDDEN = "***"


def is_secret_name(name: str) -> bool:
    """Whether a variable of this name usually holds a secret."""
    return bool(_NAME.search(name))


def references(text: str) -> list[str]:
    """The variables that a recipe's text takes from the environment: ${NAME}."""
    return _REFERENCE.findall(text)


def expand(text: str, environment: Mapping[str, str]) -> str:
    """text with every ${NAME} replaced; a variable that is not set stays as written."""
    return _REFERENCE.sub(lambda match: environment.get(match[1], match[0]), text)


def secret_values(env: Mapping[str, str], arguments: Sequence[str] = ()) -> list[str]:
    """Values to hide, longest first: of secret-looking variables here and in `env`, of every ${NAME} that is taken from
    the environment, of arguments that carry a key, and whatever has the form of a token or stands in a URL's login."""
    texts = [*env.values(), *arguments]
    found = {value for name, value in {**os.environ, **env}.items() if is_secret_name(name)}
    found |= {os.environ[name] for text in texts for name in references(text) if name in os.environ}
    found |= {value for option, value in pairwise(arguments) if _OPTION.match(option)}
    found |= {value for text in texts for value in _inside(text)}
    forms = {form for value in found for form in _forms(value)}
    return sorted(filter(_hideable, forms), key=len, reverse=True)


def _forms(value: str) -> Iterable[str]:
    """How a value may appear: whole, line by line (logs are copied so), in a JSON string, in a URL."""
    return (
        value,
        *(line.strip() for line in value.splitlines()),
        json.dumps(value)[1:-1],
        quote(value, safe=""),
    )


def _hideable(value: str) -> bool:
    """Short and plain words stand in results for other reasons: hiding them everywhere would spoil what is recorded."""
    return len(value) >= _SHORTEST and value.lower() not in _PLAIN and not _REFERENCE.fullmatch(value)


def _inside(text: str) -> Iterable[str]:
    for pattern in (_NAMED, _IN_URL):
        yield from pattern.findall(text)
    yield from _SHAPE.findall(text)


def hide(text: str, values: Sequence[str]) -> str:
    """text with each of `values` replaced by ***."""
    for value in values:
        text = text.replace(value, HIDDEN)
    return text
