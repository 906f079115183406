"""Every tail on real ranks against a float64 reference, and against vLLM's own runner class where it is installed.

T tokens, H hidden, tp ranks.
"""

import secrets
import time
from collections.abc import Sequence
from typing import Any

import torch

from latent_moe.config import KIMI_K3, LatentMoEConfig, preset
from latent_moe.errors import InputError
from latent_moe.parallel import launch
from latent_moe.platform import describe
from latent_moe.runner import Choose
from latent_moe.verify.rank_checks import check_rank
from latent_moe.verify.reference import inputs, reference, relative_error
from latent_moe.weights import SeededWeights

__all__ = ["BOUNDS", "checked_config", "inputs", "reference", "relative_error", "verify"]

# Largest norm2(x - ref) / norm2(ref) that passes.
BOUNDS = {"float32": 1e-5, "bfloat16": 1e-2}
MAX_TOKENS = 16384
# Kimi-K3 keeps every size but the number of experts: 8 of 896, 4 per token, so that one process can hold them.
K3_EXPERTS, K3_EXPERTS_PER_TOKEN = 8, 4


def checked_config(name: str) -> LatentMoEConfig:
    """The preset as verify runs it: one of Kimi-K3's sizes with 8 experts and 4 per token. Raises InputError if unknown."""
    config = preset(name)
    if config.hidden_size == KIMI_K3.hidden_size:
        return config.replace(num_experts=K3_EXPERTS, experts_per_token=K3_EXPERTS_PER_TOKEN)
    return config


def verify(
    preset_name: str = "tiny",
    tp: int = 2,
    tokens: int = 16,
    dtypes: Sequence[str] = ("float32", "bfloat16"),
    seed: int | None = None,
    oracle: str | None = None,
    timeout_s: float = 600,
    choose: Choose | None = None,
) -> dict[str, Any]:
    """Check every tail; one launch of `tp` ranks (and one of two ranks for the oracle, when asked for).

    Returns the verb's JSON: a tail's `max_rel_err` is the worst over dtypes and ranks. A tail that cannot run has
    `eligible` False and the reason; its error is then that of the replicated tail which ran instead (`ran`).
    `choose` names the tail of a step for `auto`, which is checked with it only. `seed` None draws a fresh one, reported so that a run can be repeated. Raises InputError for an unknown preset,
    dtype or oracle, a tp that does not divide, or a number of tokens that is not between 1 and 16384.
    """
    config = checked_config(preset_name)
    _check_arguments(config, tp, tokens, dtypes, oracle)
    seed = secrets.randbits(31) if seed is None else seed
    started = time.monotonic()
    cases = _cases(config, seed, tokens, dtypes)
    ranks = launch(check_rank, tp, config, seed, cases, choose, timeout_s=timeout_s)
    answer = _summary(config, ranks, dtypes)
    answer |= {"tp": tp, "preset": preset_name, "tokens": tokens, "seed": seed, "dtypes": list(dtypes)}
    answer |= {"device": describe().device_name, "seconds": round(time.monotonic() - started, 1)}
    answer["oracle"] = _oracle(oracle, seed)
    answer["ok"] = answer["ok"] and (answer["oracle"] is None or answer["oracle"]["ok"])
    return answer


def _check_arguments(config, tp, tokens, dtypes, oracle) -> None:
    config.check_tp(tp)
    if not isinstance(tokens, int) or not 1 <= tokens <= MAX_TOKENS:
        raise InputError(f"tokens {tokens!r} is not between 1 and {MAX_TOKENS}")
    unknown = [name for name in dtypes if name not in BOUNDS]
    if unknown or not dtypes:
        raise InputError(f"unknown dtype {', '.join(unknown) or 'none'} (there are: {', '.join(BOUNDS)})")
    if oracle not in (None, "vllm"):
        raise InputError(f"unknown oracle {oracle!r} (there is: vllm)")


def _cases(config, seed: int, tokens: int, dtypes) -> dict[str, Any]:
    x = inputs(config, SeededWeights(config, seed), tokens, seed, [getattr(torch, name) for name in dtypes])
    cases = {}
    for name in dtypes:
        dtype = getattr(torch, name)
        cases[name] = (x, reference(config, SeededWeights(config, seed, dtype), x.to(dtype)))
    return cases


def _summary(config: LatentMoEConfig, ranks: list[dict], dtypes) -> dict[str, Any]:
    names = list(ranks[0][dtypes[0]]["tails"])
    tails = {name: _tail_summary(name, ranks, dtypes) for name in names}
    checks = _checks(ranks, dtypes)
    within = all(tail["within_bounds"] for tail in tails.values())
    return {
        "ok": within and all(passed is not False for passed in checks.values()),
        "tails": tails,
        "checks": checks,
        "bounds": {name: BOUNDS[name] for name in dtypes},
        "num_experts": config.num_experts,
        "experts_per_token": config.experts_per_token,
    }


def _tail_summary(name: str, ranks: list[dict], dtypes) -> dict[str, Any]:
    worst = {dtype: _worst([rank[dtype]["tails"][name]["rel_err"] for rank in ranks]) for dtype in dtypes}
    first = ranks[0][dtypes[0]]["tails"][name]
    return {
        "max_rel_err": _worst(list(worst.values())),
        "eligible": first["eligible"],
        "reason": first["reason"],
        "ran": first["ran"],
        "rel_err": worst,
        # Written so that NaN fails.
        "within_bounds": all(worst[dtype] <= BOUNDS[dtype] for dtype in dtypes),
    }


def _worst(errors: list[float]) -> float:
    # max() would lose a NaN that does not come first.
    return next((error for error in errors if error != error), max(errors))


def _checks(ranks: list[dict], dtypes) -> dict[str, bool | None]:
    """None where there is nothing to check: column_parallel did not run."""
    seen = [rank[dtype] for rank in ranks for dtype in dtypes]
    if any(one["own_columns"] is None for one in seen):
        return {"own_columns": None, "same_collectives": None}
    pairs = [(one["tails"]["replicated"], one["tails"]["column_parallel"]) for one in seen]
    return {
        "own_columns": all(one["own_columns"] for one in seen),
        "same_collectives": all(a["collectives"] == b["collectives"] for a, b in pairs),
    }


def _oracle(name: str | None, seed: int) -> dict[str, Any] | None:
    if name is None:
        return None
    from latent_moe.verify.oracle import ask_vllm

    return ask_vllm(seed)
