"""What must never reach a file: tokens of an environment or a command line, and the names of people and machines.

Two uses, one vocabulary. `secret_values` lists what a benchmark hides in its logs and results, which stay readable: the
values that look like secrets. `Secrets` collects what a scrubbed trace must not hold, where nothing has to stay: every
value of the recorded environment and command line, and every host and user name.
"""

import getpass
import json
import os
import re
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from urllib.parse import quote

HIDDEN = "***"  # in a log or a result
SCRUBBED = "scrubbed"  # in a trace, whose file names and ranges it may become part of

# TOKENIZERS_PARALLELISM, MAX_TOKENS and GIT_AUTHOR_NAME hold no secret: their values are words that results need.
_WORD = r"token(?!s|iz)|secret|passw(?:or)?d|credential|api[_-]?key|access[_-]?key|private[_-]?key"
_SECRET_NAME = re.compile(rf"{_WORD}|auth(?!or)|private", re.IGNORECASE)
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
_PATH = re.compile(r"(?<![\w.:])(?:~|/[\w.+@\-]+)(?:/[\w.+@\-]+)*/(?=[\w.+@\-])")
# Of a name or a secret; and of any value at all: shorter ones (1, true, gfx950) stand inside kernel names.
_SHORTEST, _SHORTEST_VALUE = 4, 8
_PLAIN = {"true", "false", "none", "null", "(none)", SCRUBBED}
_COMMON = _PLAIN | {"root", "user", "host", "home", "localhost", "python", "python3", "linux"}
_NAME_VARIABLES = ("USER", "LOGNAME", "USERNAME", "SUDO_USER", "HOSTNAME", "SLURMD_NODENAME")


def is_secret_name(name: str) -> bool:
    """Whether a variable of this name usually holds a secret."""
    return bool(_SECRET_NAME.search(name))


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
    values = {value for name, value in {**os.environ, **env}.items() if is_secret_name(name)}
    values |= {os.environ[name] for text in texts for name in references(text) if name in os.environ}
    values |= {value for option, value in pairwise(arguments) if _OPTION.match(option)}
    values |= {value for text in texts for value in _inside(text)}
    forms = {form for value in values for form in _text_forms(value)}
    return sorted(filter(_hideable, forms), key=len, reverse=True)


def hide(text: str, values: Sequence[str]) -> str:
    """text with each of `values` replaced by ***."""
    for value in values:
        text = text.replace(value, HIDDEN)
    return text


def _inside(text: str) -> Iterable[str]:
    """Secrets that are part of a longer text."""
    for pattern in (_NAMED, _IN_URL):
        yield from pattern.findall(text)
    yield from _SHAPE.findall(text)


def _text_forms(value: str) -> Iterable[str]:
    """How a value may appear: whole, line by line (logs are copied so), in a JSON string, in a URL."""
    lines = (line.strip() for line in value.splitlines())
    return (value, *lines, json.dumps(value)[1:-1], quote(value, safe=""))


def _byte_forms(value: str) -> set[bytes]:
    """How a value may stand in a file: in UTF-8, in UTF-16, or escaped as in JSON."""
    escaped = value.encode("unicode_escape").replace(b"/", b"\\/")
    return {value.encode("utf-8", "replace"), value.encode("utf-16-le", "replace"), escaped}


def _hideable(value: str) -> bool:
    """Short and plain words stand in results for other reasons: hiding them everywhere would spoil what is recorded."""
    return len(value) >= _SHORTEST and value.lower() not in _PLAIN and not _REFERENCE.fullmatch(value)


@dataclass
class Secrets:
    """Texts that stood in the places which a scrubbed copy empties; `names` also include this machine's own."""

    values: set[str] = field(default_factory=set)
    names: set[str] = field(default_factory=set)

    def add_environment(self, environment: Mapping[str, object]) -> None:
        """Every value that is long enough to tell something, and the names in USER, HOSTNAME and such."""
        for key, value in environment.items():
            self.add_values([str(value)])
            if key.upper() in _NAME_VARIABLES:
                self.add_names([str(value)])
            if key.upper() == "HOME":
                self.add_names([str(value).rstrip("/").rsplit("/", 1)[-1]])

    def add_values(self, values: Iterable[str]) -> None:
        """Values of variables, words of a command line, and the tokens inside them."""
        texts = {text for value in values for text in (value, *_inside(value))}
        self.values |= {
            text for text in texts if len(text) >= _SHORTEST_VALUE and text.lower() not in _COMMON
        }

    def add_command(self, command: str | list[str] | None) -> None:
        """A command line, whole and word by word; of --token=abc also the abc."""
        words = command.split() if isinstance(command, str) else [str(word) for word in command or []]
        self.add_values([" ".join(words), *words, *(word.split("=", 1)[-1] for word in words)])

    def add_names(self, names: Iterable[object]) -> None:
        """Host and user names."""
        texts = {str(name).strip() for name in names if name}
        self.names |= {text for text in texts if len(text) >= _SHORTEST and text.lower() not in _COMMON}

    def add_this_machine(self) -> None:
        """The names of the machine and user that scrub: often those that recorded."""
        host = socket.gethostname()
        self.add_names([host, host.split(".")[0], _user()])

    def all(self) -> list[str]:
        """Everything, the longest first, so that a part does not hide the whole."""
        return sorted(self.values | self.names, key=lambda text: (-len(text), text))

    def clean(self, text: str) -> str:
        """The text without secrets, and with the last part only of each absolute path."""
        for secret in self.all():
            if secret in text:
                text = text.replace(secret, SCRUBBED)
        return _PATH.sub("", text)

    def left_in(self, content: bytes) -> list[str]:
        """Secrets whose bytes are still there, in UTF-8, UTF-16 or escaped as in JSON."""
        return [secret for secret in self.all() if any(form in content for form in _byte_forms(secret))]


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return ""
