"""Cutting T tokens into pieces that tails work on one after another."""

import torch
from torch.nn.functional import pad

from latent_moe.errors import InputError


def pieces(tokens: int, count: int, multiple: int = 1) -> list[slice]:
    """At most `count` consecutive row slices of nearly equal length, each but the last a multiple of `multiple`.

    Raises InputError unless count is at least 1.
    """
    if count < 1:
        raise InputError(f"chunks {count}: at least 1 is needed")
    step = -(-tokens // (count * multiple)) * multiple
    return [slice(start, min(start + step, tokens)) for start in range(0, tokens, max(step, 1))]


def padded_rows(x: torch.Tensor, multiple: int) -> torch.Tensor:
    """x [T, N] with zero rows added until T is a multiple; x itself where it already is."""
    missing = -x.shape[0] % multiple
    return pad(x, (0, 0, 0, missing)) if missing else x
