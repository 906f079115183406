"""Launching the fused kernel: checks, workspace, grid.

T tokens, N = H/tp columns of this rank, K = L latent.
"""

import os
from functools import cache
from importlib.util import find_spec

import torch

from latent_moe.errors import InputError
from latent_moe.fused_kernel.tile_plan import TilePlan, choose

DTYPES = (torch.bfloat16, torch.float16)
_workspaces: dict[tuple, tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}


def interpreted() -> bool:
    """Whether Triton's interpreter is asked for (TRITON_INTERPRET=1): it runs the kernel on a CPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def why_not(hidden: int, latent: int, dtype: torch.dtype | None = None) -> str | None:
    """Why the fused kernel cannot run here on these sizes, or None.

    hidden: H, latent: L; both must be multiples of 16.
    """
    if find_spec("triton") is None:
        return "Triton is not installed"
    if not (torch.cuda.is_available() or interpreted()):
        return "no GPU, and Triton's interpreter is not asked for (TRITON_INTERPRET=1)"
    if hidden % 16 or latent % 16:
        return f"hidden {hidden} and latent {latent} are not multiples of 16"
    if dtype is not None and dtype not in DTYPES:
        return f"the fused kernel takes bfloat16 and float16, not {str(dtype).removeprefix('torch.')}"
    return None


def norm_project_accumulate(
    x: torch.Tensor,
    gain: torch.Tensor | None,
    eps: float | None,
    weight: torch.Tensor,
    out: torch.Tensor,
    plan: TilePlan | None = None,
) -> None:
    """out [T, N] += RMSNorm(x [T, K]; gain [K], eps) @ weight [N, K]^T, in place; fp32 sums, same bits every run.

    `out` may be a strided view whose rows are contiguous. eps None: no norm; gain None: a norm whose gain is folded
    into the weight (`tails.fold_gain`), the faster form. One workspace is kept per device and
    shape: launches of one shape must follow each other, on one stream or ordered by events, as a model's layers do.

    Raises InputError for shapes, strides or dtypes the kernel does not take.
    """
    _check(x, gain, weight, out)
    tokens, n, k = x.shape[0], weight.shape[0], weight.shape[1]
    if tokens == 0:
        return
    plan = plan or choose(architecture(x.device), tokens, n, k)
    # A gain still to be multiplied in needs the tiles in registers anyway.
    gram = plan.form == "gram" and gain is None
    tiles_t, tiles_n = -(-tokens // plan.block_t), -(-n // plan.block_n)
    partials, squares, tickets = _workspace(x.device, tiles_t * tiles_n, plan)
    from latent_moe.fused_kernel.source import fused_up_projection

    fused_up_projection[(tiles_n, tiles_t, plan.split)](
        x, x if gain is None else gain, weight, out, partials, squares, tickets,
        tokens, x.stride(0), weight.stride(0), out.stride(0), 0.0 if eps is None else eps,
        1.0,
        N=n, K=k, HAS_NORM=eps is not None, HAS_GAIN=eps is not None and gain is not None,
        BLOCK_T=plan.block_t, BLOCK_N=plan.block_n, BLOCK_K=plan.block_k, SPLIT=plan.split,
        SWAP=plan.form == "swapped", GRAM=gram, FINISH=_must_finish(eps, gain, gram), WIDE_DOT=interpreted(),
        num_warps=plan.warps, num_stages=plan.stages,
    )  # fmt: skip


def _must_finish(eps: float | None, gain: torch.Tensor | None, gram: bool) -> bool:
    """Whether the tiles of x are read by registers and by NVIDIA's asynchronous product both (see source.py)."""
    return torch.version.cuda is not None and eps is not None and gain is None and not gram


def _check(x, gain, weight, out) -> None:
    tokens, k = x.shape
    n = weight.shape[0]
    if weight.shape != (n, k) or out.shape != (tokens, n) or (gain is not None and gain.shape != (k,)):
        raise InputError(
            f"fused tail: x {tuple(x.shape)}, weight {tuple(weight.shape)}, out {tuple(out.shape)} do not fit"
        )
    if any(t.dtype not in DTYPES for t in (x, weight, out)):
        raise InputError(
            f"fused tail: takes bfloat16 and float16, not {x.dtype}, {weight.dtype}, {out.dtype}"
        )
    if any(t.stride(-1) != 1 for t in (x, weight, out)):
        raise InputError("fused tail: rows of x, weight and out must be contiguous")


@cache
def architecture(device: torch.device) -> str:
    """sm_90, gfx950, or interpreter: the key of the tuned plans."""
    if device.type != "cuda":
        return "interpreter"
    properties = torch.cuda.get_device_properties(device)
    if torch.version.hip:
        return properties.gcnArchName.split(":")[0]
    return f"sm_{properties.major}{properties.minor}"


def _workspace(device: torch.device, tiles: int, plan: TilePlan):
    """Partial sums [tiles, SPLIT, BLOCK_T, BLOCK_N], sums of squares, and tickets that start and end at zero."""
    key = (device, tiles, plan.split, plan.block_t, plan.block_n)
    if key in _workspaces:
        return _workspaces[key]
    count = tiles * plan.split * plan.block_t if plan.split > 1 else 1
    made = (
        torch.empty(count * plan.block_n, dtype=torch.float32, device=device),
        torch.empty(count, dtype=torch.float32, device=device),
        torch.zeros(tiles, dtype=torch.int32, device=device),
    )
    # Memory of a graph under capture belongs to that graph: it must not be handed to anyone else.
    if device.type != "cuda" or not torch.cuda.is_current_stream_capturing():
        _workspaces[key] = made
    return made
