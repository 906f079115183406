"""The sharded tail in single steps on real ranks, with what every rank holds after each.

T tokens, H hidden, L latent, tp ranks; W_r [H/tp, L].
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from latent_moe.config import TINY, LatentMoEConfig
from latent_moe.layer import LatentMoE
from latent_moe.weights import SeededWeights
from latent_moe.parallel import TensorParallel, launch
from latent_moe.runner import ROCmLatentMoERunner
from latent_moe.tails import apply_norm
from latent_moe.tails import accumulate_into
from latent_moe.verify.reference import inputs, relative_error

# (what the step leaves, of which tensor, in words)
_STEPS = (
    ("routed partial", "routed", "each rank has its slice of every expert: partial sums, all different"),
    ("all-reduce(routed)", "routed", "every rank holds the whole sum"),
    ("RMSNorm", "routed", "the norm needs the whole sum: it cannot come before the all-reduce"),
    ("shared partial", "shared", "partial sums of the shared experts, all different"),
    ("shared[:, r] += h W_r^T", "shared", "each rank adds the routed output into its own H/tp columns"),
    ("all-reduce(shared)", "shared", "one sum adds the shared partials and gathers the slices"),
)


@dataclass(frozen=True)
class Walk:
    """A tail taken apart. `steps`: {"name", "what", "about", "values" [tp, T, columns]}; `written` [tp, H] is the
    largest change over the tokens that each rank made to its shared partial; `rel_err_replicated` compares the result
    with the replicated tail's on the same partial sums; `issued` lists one rank's collectives of both tails."""

    steps: list[dict[str, Any]]
    written: np.ndarray
    rel_err_replicated: float
    issued: dict[str, list[tuple[str, int]]]


def walk(tp: int = 8, config: LatentMoEConfig = TINY, tokens: int = 8, seed: int = 0) -> Walk:
    """Run the sharded tail on `tp` real ranks, step by step.

    Raises InputError for a tp that does not divide the layer's sizes or cannot be launched.
    """
    config.check_tp(tp)
    ranks = launch(_rank, tp, config, tokens, seed)
    stacked = [np.stack([rank["values"][i] for rank in ranks]) for i in range(len(_STEPS))]
    steps = [
        {"name": name, "what": what, "about": about, "values": values}
        for (name, what, about), values in zip(_STEPS, stacked, strict=True)
    ]
    written = np.abs(stacked[4] - stacked[3]).max(axis=1)  # [tp, H]
    error = max(rank["rel_err"] for rank in ranks)
    return Walk(steps, written, error, ranks[0]["issued"])


def _rank(tp: TensorParallel, config: LatentMoEConfig, tokens: int, seed: int) -> dict[str, Any]:
    weights = SeededWeights(config, seed)
    layer = LatentMoE(config, tp, weights, runner_cls=ROCmLatentMoERunner, runner_args={"tail": "replicated"})
    x = inputs(config, weights, tokens, seed, [torch.float32]).to(tp.device)
    routed, shared = layer.partials(x)  # [T, L], [T, H]
    assert shared is not None  # the walk's layers have shared experts
    before = (routed.clone(), shared.clone())
    values, issued = _stepped(tp, layer.runner.routed_output_transform, routed, shared)
    tp.issued.clear()
    replicated = layer.runner.finish(*before)
    error = relative_error(torch.as_tensor(values[-1]), replicated.cpu())
    return {
        "values": values,
        "rel_err": error,
        "issued": {"column_parallel": issued, "replicated": _issued(tp)},
    }


def _stepped(tp: TensorParallel, transform, routed, shared) -> tuple[list[np.ndarray], list]:
    tp.issued.clear()
    values = [_kept(routed)]
    latent = tp.all_reduce(routed)  # [T, L]
    values.append(_kept(latent))
    hidden = apply_norm(transform.norm, latent)  # [T, L]
    values += [_kept(hidden), _kept(shared)]
    own = shared[:, tp.columns(shared.shape[1])]  # [T, H/tp], a view
    accumulate_into(own, hidden, transform.rows("own"))
    values.append(_kept(shared))
    values.append(_kept(tp.all_reduce(shared)))  # [T, H]
    return values, _issued(tp)


def _kept(x: torch.Tensor) -> np.ndarray:
    return x.detach().float().cpu().numpy().copy()


def _issued(tp: TensorParallel) -> list[tuple[str, int]]:
    return [(one.kind, one.bytes) for one in tp.issued]
