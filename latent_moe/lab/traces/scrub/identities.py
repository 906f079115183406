"""What must not survive in a scrubbed copy, and taking it out of text."""

import getpass
import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass, field

REPLACEMENT = "scrubbed"
# Shorter values (1, true, gfx950) are no secrets and stand inside kernel names.
_SHORTEST_VALUE, _SHORTEST_NAME = 8, 4
_COMMON = {
    "root",
    "user",
    "host",
    "home",
    "localhost",
    "python",
    "python3",
    "linux",
    "none",
    "(none)",
    REPLACEMENT,
}
_PATH = re.compile(r"(?<![\w.:])(?:~|/[\w.+@\-]+)(?:/[\w.+@\-]+)*/(?=[\w.+@\-])")
_NAME_VARIABLES = ("USER", "LOGNAME", "USERNAME", "SUDO_USER", "HOSTNAME", "SLURMD_NODENAME")


@dataclass
class Secrets:
    """Texts that were found in the places that get emptied; `names` also include this machine's own."""

    values: set[str] = field(default_factory=set)
    names: set[str] = field(default_factory=set)

    def add_environment(self, environment: dict[str, object]) -> None:
        """Every value that is long enough to tell something, and the names in USER, HOSTNAME and such."""
        for key, value in environment.items():
            self.add_values([str(value)])
            if key.upper() in _NAME_VARIABLES:
                self.add_names([str(value)])
            if key.upper() == "HOME":
                self.add_names([str(value).rstrip("/").rsplit("/", 1)[-1]])

    def add_values(self, values: Iterable[str]) -> None:
        """Values of variables, words of a command line."""
        self.values |= {v for v in values if len(v) >= _SHORTEST_VALUE and v.lower() not in _COMMON}

    def add_command(self, command: str | list[str] | None) -> None:
        """A command line, whole and word by word; of --token=abc also the abc."""
        words = command.split() if isinstance(command, str) else [str(word) for word in command or []]
        self.add_values([" ".join(words), *words, *(word.split("=", 1)[-1] for word in words)])

    def add_names(self, names: Iterable[object]) -> None:
        """Host and user names."""
        texts = {str(name).strip() for name in names if name}
        self.names |= {text for text in texts if len(text) >= _SHORTEST_NAME and text.lower() not in _COMMON}

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
                text = text.replace(secret, REPLACEMENT)
        return _PATH.sub("", text)

    def left_in(self, content: bytes) -> list[str]:
        """Secrets whose bytes are still there, in UTF-8, UTF-16 or escaped as in JSON."""
        return [secret for secret in self.all() if any(form in content for form in _forms(secret))]


def _forms(secret: str) -> set[bytes]:
    escaped = secret.encode("unicode_escape").replace(b"/", b"\\/")
    return {secret.encode("utf-8", "replace"), secret.encode("utf-16-le", "replace"), escaped}


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return ""
