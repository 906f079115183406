"""What must never reach a result, a log or a printed command: tokens that an arm's environment or arguments carry."""

import os
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise

_NAME = re.compile(
    r"TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|API_?KEY|ACCESS_?KEY|AUTH|PRIVATE", re.IGNORECASE
)
_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_OPTION = re.compile(r"^--(api-key|hf-token|header)$")
_SHORTEST = 4
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
    """Values to hide, longest first: of secret-looking variables here and in `env`, of every ${NAME} that `env` takes
    from the environment, and of arguments that carry a key."""
    found = {value for name, value in {**os.environ, **env}.items() if is_secret_name(name)}
    found |= {os.environ[name] for value in env.values() for name in references(value) if name in os.environ}
    found |= {
        os.environ[name]
        for value in arguments
        for name in references(value)
        if is_secret_name(name) and name in os.environ
    }
    found |= {value for option, value in pairwise(arguments) if _OPTION.match(option)}
    return sorted((value for value in found if len(value) >= _SHORTEST), key=len, reverse=True)


def hide(text: str, values: Sequence[str]) -> str:
    """text with each of `values` replaced by ***."""
    for value in values:
        text = text.replace(value, HIDDEN)
    return text
