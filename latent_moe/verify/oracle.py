"""The same weights through vLLM's own ROCmLatentMoERunner and through ours, at tp = 2 in fp32.

T tokens, H hidden, L latent, E experts, I expert width. vLLM is imported inside the ranks only.
"""

import time
from typing import Any

import torch

from latent_moe.config import LatentMoEConfig
from latent_moe.errors import LatentMoEError
from latent_moe.parallel import launch
from latent_moe.platform import describe
from latent_moe.verify.oracle_rank import compare_rank

BOUND = 1e-5
TP = 2
TOKENS = 24
# The versions whose interface this oracle was written for and has run against.
KNOWN = ("0.32",)
# vLLM's CPU experts take silu only, and its KimiMoE pads widths below 256 a rank: this layer needs neither.
CONFIG = LatentMoEConfig(
    hidden_size=512,
    latent_size=256,
    num_experts=8,
    experts_per_token=2,
    expert_width=512,
    shared_width=512,
    activation="silu",
)


def ask_vllm(seed: int, timeout_s: float = 300) -> dict[str, Any]:
    """Launch two ranks and compare; {"name", "ok", "version", "rel_err", "baseline_rel_err", "bound", ...}.

    `rel_err` is norm2(ours - vLLM's) / norm2(vLLM's) of the sharded tail, `baseline_rel_err` that of the baseline,
    each the worst over the ranks. Where vLLM is absent, of an unknown version, or fails, `ok` is False, the errors
    are None and `reason` says why in one line.
    """
    version = describe().vllm_version
    answer = {"name": "vllm", "version": version, "tp": TP, "bound": BOUND, "dtype": "float32"}
    reason = _unusable(version)
    if reason is None:
        started = time.monotonic()
        try:
            ranks = launch(compare_rank, TP, CONFIG, seed, TOKENS, timeout_s=timeout_s, backend="gloo")
        except LatentMoEError as error:
            reason = f"vLLM {version} could not be asked: {error}"
        else:
            return answer | _compared(ranks) | {"seconds": round(time.monotonic() - started, 1)}
    missing = {"rel_err": None, "baseline_rel_err": None, "reason": reason}
    return answer | {"ok": False} | missing


def _unusable(version: str | None) -> str | None:
    if version is None:
        return "vLLM is not installed here"
    if not version.startswith(tuple(f"{known}." for known in KNOWN)):
        return f"vLLM {version} is not a version this oracle knows ({', '.join(KNOWN)})"
    if torch.cuda.is_available():
        return "the oracle compares on the CPU with vLLM's CPU build; this machine's torch is a GPU build"
    return None


def _compared(ranks: list[dict[str, Any]]) -> dict[str, Any]:
    errors = [rank["rel_err"] for rank in ranks]
    baseline = [rank["baseline_rel_err"] for rank in ranks]
    return {
        "ok": all(error <= BOUND for error in errors + baseline),
        "rel_err": max(errors),
        "baseline_rel_err": max(baseline),
        "class": ranks[0]["class"],
        "sharded": all(rank["sharded"] for rank in ranks),
        "reason": None,
    }
