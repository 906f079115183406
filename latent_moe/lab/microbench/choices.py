"""What `auto` would have chosen at each measured point, and how far that is from the best tail measured there.

T tokens, tp ranks.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from latent_moe.config import LatentMoEConfig
from latent_moe.lab.cost.auto_tail import pick
from latent_moe.parallel import TORCH, TensorParallel
from latent_moe.platform import Platform
from latent_moe.tail_variants.registry import TAILS


def choices(
    rows: Iterable[Mapping[str, Any]],
    config: LatentMoEConfig,
    tp: int,
    machine: Platform,
    communicator: str = TORCH,
) -> list[dict[str, Any]]:
    """One row per T and mode: tail, why, us, best, best_us, over_best_pct.

    `rows` have tail, tokens, mode and median_us; a choice that was not timed among them is left out. Judged fairly
    only by rows other than those of the recording that `auto` itself consults.
    """
    points: dict[tuple[int, str], dict[str, float]] = {}
    for row in rows:
        # Variants ("pipelined:chunks=3") are not tails that auto can choose.
        if row["tail"] in TAILS:
            points.setdefault((row["tokens"], row["mode"]), {})[row["tail"]] = row["median_us"]
    group = TensorParallel(rank=0, size=tp, communicator=communicator)
    found = [_choice(tokens, mode, times, config, group, machine) for (tokens, mode), times in points.items()]
    return [one for one in found if one is not None]


def _choice(tokens: int, mode: str, times: dict[str, float], config, group, machine) -> dict[str, Any] | None:
    tail, why = pick(tokens, config, group, machine, mode)
    if tail not in times:
        return None
    best = min(times, key=lambda name: times[name])
    return {
        "tokens": tokens, "mode": mode, "tail": tail, "why": why, "us": times[tail],
        "best": best, "best_us": times[best], "over_best_pct": 100 * (times[tail] / times[best] - 1),
    }  # fmt: skip
