"""What a kernel's name says: its kind and library, and for GEMMs the tile, transposes and data types.

One ordered table (`rules`) with one set of labels; the first rule that finds its pattern in the name wins. A name no
rule knows is "unknown": it is never guessed into a kind.
"""

from latent_moe.lab.traces.kernel_names.classify import (
    COMPUTE_KINDS,
    Classes,
    classify,
    collective_type,
    shorten,
)
from latent_moe.lab.traces.kernel_names.gemm_names import GemmName, decode_gemm
from latent_moe.lab.traces.kernel_names.rules import KINDS, LIBRARIES, RULES

__all__ = [
    "COMPUTE_KINDS",
    "KINDS",
    "LIBRARIES",
    "RULES",
    "Classes",
    "GemmName",
    "classify",
    "collective_type",
    "decode_gemm",
    "shorten",
]
