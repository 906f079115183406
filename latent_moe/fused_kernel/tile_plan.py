"""Which tile sizes the fused kernel runs with: the tuned ones where they are recorded, else a rule.

T tokens, N columns of this rank, K latent.
"""

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from latent_moe.errors import unknown

SIZES = ("block_t", "block_n", "block_k", "split", "warps", "stages")
EARLY_FORMS = ("early", "rows")
FORMS = ("plain", "swapped", "gram", *EARLY_FORMS)
TUNED = Path(__file__).with_name("tuned.csv")


@dataclass(frozen=True)
class TilePlan:
    """Tile sizes, the number of programs K is split over, the compiler's options, and the form of the products.

    form: "plain", "swapped" (the transposed product) or "gram" (squares by the matrix unit); see source.py. "early" and
    "rows" (no matrix unit) hold the program's whole slice of the weight before x is read; see early_source.py: there
    block_k is the slice, and `stages` says nothing.
    """

    block_t: int
    block_n: int
    block_k: int
    split: int
    warps: int
    stages: int
    form: str = "plain"

    def __post_init__(self):
        if self.form not in FORMS:
            raise unknown("form of a plan", self.form, FORMS)

    @property
    def is_early(self) -> bool:
        """Whether the weight is read before x exists."""
        return self.form in EARLY_FORMS


@cache
def _tuned() -> dict[tuple[str, int, int, int], TilePlan]:
    if not TUNED.is_file():
        return {}
    with TUNED.open(newline="", encoding="utf-8") as file:
        return {
            (row["arch"], int(row["n"]), int(row["k"]), int(row["bucket"])): TilePlan(
                **{name: int(row[name]) for name in SIZES}, form=row["form"]
            )
            for row in csv.DictReader(file)
        }


def bucket(tokens: int) -> int:
    """The power of two at or above `tokens`: plans are tuned and reused per bucket."""
    return 1 << (max(tokens, 1) - 1).bit_length()


def choose(arch: str, tokens: int, n: int, k: int) -> TilePlan:
    """The plan for `arch` (sm_90, gfx950): tuned for this N, K and T's bucket, or by rule."""
    return tuned(arch, tokens, n, k) or by_rule(tokens, n, k)


def tuned(arch: str, tokens: int, n: int, k: int) -> TilePlan | None:
    """The plan that was tuned for this N, K and T's bucket on `arch`, or None."""
    return _tuned().get((arch, n, k, bucket(tokens)))


def by_rule(tokens: int, n: int, k: int) -> TilePlan:
    """About one program for each of 128 processors, 64-wide tiles, as many splits as that takes."""
    block_t = min(max(bucket(tokens), 16), 64)
    block_n = 64 if n >= 64 else max(16, bucket(n))
    tiles = -(-tokens // block_t) * -(-n // block_n)
    block_k = 64 if k >= 64 else max(16, bucket(k))
    split = max(1, min(128 // tiles, 16, -(-k // (2 * block_k))))
    return TilePlan(block_t, block_n, block_k, split, warps=4, stages=3)
