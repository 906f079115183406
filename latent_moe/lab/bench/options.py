"""What the servers of a recipe's arms are given, read as vLLM and its plugin read it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from latent_moe.vllm_plugin.register import TAIL_VARIABLE

if TYPE_CHECKING:
    from latent_moe.lab.bench.recipe import Recipe

DEFAULT_PORT = 8000  # vLLM's own


def tail_of(recipe: Recipe, arm: str) -> str | None:
    """LATENT_MOE_TAIL of the arm."""
    return {**recipe.server.env, **recipe.arms[arm].env}.get(TAIL_VARIABLE)


def number_after(words: Sequence[str], option: str) -> int | None:
    """The number behind an option, as a word of its own or after "="; of several the last, None where there is none."""
    texts = [after for word, after in pairwise(words) if word == option]
    texts += [word.partition("=")[2] for word in words if word.startswith(f"{option}=")]
    return int(texts[-1]) if texts and texts[-1].isdecimal() else None
