"""The automatic choice of a tail: by a recording of this machine, else by the cost model, else the change's own.

T tokens, tp ranks.
"""

from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

import torch

from latent_moe.config import LatentMoEConfig
from latent_moe.errors import InputError
from latent_moe.lab import recordings as profiles
from latent_moe.lab.cost import hardware, tail_timings
from latent_moe.lab.cost.tail import best_tail, measured_best
from latent_moe.parallel import TORCH, TensorParallel
from latent_moe.platform import Platform, describe
from latent_moe.runner import refusal
from latent_moe.tail_variants.registry import DEFAULT, TAILS

_this_machine = cache(describe)


def choose(tokens: int, config: LatentMoEConfig, tp: TensorParallel) -> tuple[str, str]:
    """`pick` on this machine: what a runner takes as `choose`."""
    return pick(tokens, config, tp, _this_machine())


def register_with_vllm() -> None:
    """vLLM's entry point: this package's model and runner, with `choose` for LATENT_MOE_TAIL=auto."""
    from latent_moe.vllm_plugin.register import register

    register(choose)


def pick(
    tokens: int, config: LatentMoEConfig, tp: TensorParallel, platform: Platform, mode: str | None = None
) -> tuple[str, str]:
    """The tail for a step of `tokens` tokens, and why in one line; never a tail that is refused.

    `mode` says by which rows of a recording to judge, "graph" or "eager"; None: graph while one is captured. A
    recording of the same communicator's collectives goes before one of another's.
    """
    situation = Situation(platform.device_name, mode or _mode(), tp.communicator, tp.nodes)
    return _pick(tokens, config, tp.size, situation, str(profiles.profiles_dir()))


@dataclass(frozen=True)
class Situation:
    """Where a tail is to run: the device, the rows of a recording to judge by, whose collectives, over how many hosts."""

    device: str
    mode: str
    communicator: str
    nodes: int = 1


def _mode() -> str:
    capturing = torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
    return "graph" if capturing else "eager"


@lru_cache(maxsize=4096)
def _pick(tokens: int, config, tp_size: int, where: Situation, _folder: str) -> tuple[str, str]:
    allowed = [name for name, tail in TAILS.items() if not refusal(tail, config, tp_size, tokens=tokens)]
    if allowed == ["replicated"]:
        refused = refusal(TAILS[DEFAULT], config, tp_size, tokens=tokens)
        return "replicated", f"nothing to choose from: {refused.text if refused else 'no other tail can run'}"
    measured, unusable = _measured(tokens, config, tp_size, where, allowed)
    if measured is not None:
        return measured
    found, why = _modelled(tokens, config, tp_size, where, allowed)
    return found, f"{why}; {unusable}" if unusable else why


def _measured(tokens, config, tp_size, where: Situation, allowed) -> tuple[tuple[str, str] | None, str]:
    """((tail, why) or None, what was wrong with recordings that should have answered)."""
    series, unusable = [], []
    for folder in profiles.folders():
        try:
            manifest = profiles.load_manifest(folder)
            if _fits(manifest, config, tp_size, where):
                series.append((manifest, *_series(folder, where.mode, tp_size, allowed)))
        except InputError as error:
            # One broken recording does not make the others worth less.
            unusable.append(f"a recording could not be used ({error})")

    def apart(one) -> tuple[bool, bool]:
        manifest, mode, _ = one
        return mode != where.mode, _communicator(manifest) != where.communicator

    # A recording that has the mode goes before one that has not, then one of the same collectives.
    for manifest, found, rows in sorted(series, key=apart):
        how = f"measured: {manifest.name}, {found}, {manifest.date}"
        if _communicator(manifest) != where.communicator:
            how += f", collectives of {_communicator(manifest)}"
        return (measured_best(rows, tokens), how), ""
    return None, "; ".join(unusable)


def _communicator(manifest: profiles.Manifest) -> str:
    named = manifest.parameters.get("communicator")
    return named if isinstance(named, str) else TORCH


def _series(folder: Path, mode: str, tp_size: int, allowed) -> tuple[str, list[dict]]:
    """(mode, rows) of the recording: of `mode` where it has any, else of the other one.

    Raises InputError where it has no row that could answer.
    """
    rows = [
        row for row in tail_timings.read(folder) if row["tail"] in allowed and row["tp"] in (None, tp_size)
    ]
    for found in tail_timings.first_of_modes(mode):
        chosen = [row for row in rows if row["mode"] == found]
        if chosen:
            return found, chosen
    raise InputError(f"{folder.name}: no row of a tail that can run here at tp {tp_size}")


def _fits(manifest: profiles.Manifest, config: LatentMoEConfig, tp_size: int, where: Situation) -> bool:
    """Whether a recording is of whole tails of this layer, on this device and number of ranks."""
    recorded = manifest.parameters
    return (
        manifest.kind == "measured"
        and "tails.csv" in manifest.files
        # "2 x NVIDIA H200": two of them.
        and manifest.device.split(" x ")[-1] == where.device
        and recorded.get("nodes", 1) == where.nodes
        and recorded.get("collectives") is True
        and recorded.get("tp") == tp_size
        and recorded.get("hidden_size") == config.hidden_size
        and recorded.get("latent_size") == config.latent_size
    )


def _modelled(tokens, config, tp_size, where: Situation, allowed) -> tuple[str, str]:
    name = hardware.of_device(where.device)
    if name is None or where.nodes > 1:
        hosts = f" on {where.nodes} hosts" if where.nodes > 1 else ""
        return _fallback(allowed), f"no recording and no cost model for {where.device}{hosts}"
    best = best_tail(tokens, tp_size, hardware.get(name), config, allowed)
    return best.tail, f"modelled for {name}: {best.total_us:.0f} us"


def _fallback(allowed) -> str:
    return DEFAULT if DEFAULT in allowed else "replicated"
