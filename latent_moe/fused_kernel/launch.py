"""Launching the fused kernel: checks, workspace, grid, and a short way for calls that were made before.

T tokens, N = H/tp columns of this rank, K = L latent.
"""

import os
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch

from latent_moe.errors import InputError
from latent_moe.fused_kernel import shelf
from latent_moe.fused_kernel.tile_plan import TilePlan, by_rule, choose, tuned

DTYPES = (torch.bfloat16, torch.float16)
# Triton 3.10 turns the fusion of multiply and add off by default: named here, no bit depends on the version.
FP_FUSION = {"enable_fp_fusion": True}
LIBRARY_FROM = 128
_compiled: dict[tuple, Any] = {}


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
    into the weight (`tails.fold_gain`), the faster form. Launches on several streams, or in several branches of
    a graph, may run at once: each has a workspace of its own (shelf.py). On NVIDIA GPUs with programmatic dependent
    launch a plan of an early form reads the weight while the kernel before may still run: that kernel must not write it.

    Raises InputError for shapes, strides or dtypes the kernel does not take.
    """
    if torch.compiler.is_compiling():
        _uncompiled(x, gain, eps, weight, out, plan)
        return
    _check(x, gain, weight, out)
    if x.shape[0] == 0:
        return
    if plan is None and _library_is_faster(x, weight, out):
        _by_library(x, gain, eps, weight, out)
        return
    call = _call(x, gain, eps, weight, out, plan)
    key = (shelf.place(x.device), call.workspace)
    kept = shelf.take(key, call.make_workspace)
    call.run(x, gain, weight, out, kept)
    shelf.put_back(key, kept)


@torch._disable_dynamo  # torch.compiler.disable would import dynamo at once
def _uncompiled(*arguments) -> None:
    """The call as it is without torch.compile, which would keep the workspace of the call that it saw."""
    norm_project_accumulate(*arguments)


def _library_is_faster(x, weight, out) -> bool:
    """Where nothing is tuned, from 129 tokens on: profiles/h200_chain (large.csv), h200_tp8_shapes."""
    tokens, (n, k) = x.shape[0], weight.shape
    if tokens <= LIBRARY_FROM or not x.is_cuda or not x.dtype == weight.dtype == out.dtype:
        return False
    return tuned(architecture(x.device), tokens, n, k) is None


def _by_library(x, gain, eps, weight, out) -> None:
    """The same by the library's norm and product; hipBLASLt's accumulating form has faulted at some row counts."""
    if eps is not None:
        gain = None if gain is None else gain.to(x.dtype)
        x = torch.nn.functional.rms_norm(x, (x.shape[1],), gain, eps)  # [T, K]
    if torch.version.hip:
        out += x @ weight.t()  # [T, N]
    else:
        out.addmm_(x, weight.t())  # [T, N]


@dataclass
class _Call:
    """What is the same in every call of one form: kernel, grid, numbers and constants, and the compiled kernel."""

    kernel: Any
    grid: tuple[int, int, int]
    plan: TilePlan
    numbers: tuple
    constants: dict[str, Any]
    device: torch.device
    tensors: int
    early: bool = False

    @property
    def workspace(self) -> tuple:
        """What workspaces of this size are known by."""
        return self.device, self.grid, self.plan.block_t, self.plan.block_n

    def make_workspace(self) -> tuple[torch.Tensor, ...]:
        """Partial sums [tiles, SPLIT, BLOCK_T, BLOCK_N], sums of squares, and tickets that start and end at zero."""
        tiles, plan = self.grid[0] * self.grid[1], self.plan
        count = tiles * plan.split * plan.block_t if plan.split > 1 else 1
        return (
            torch.empty(count * plan.block_n, dtype=torch.float32, device=self.device),
            torch.empty(count, dtype=torch.float32, device=self.device),
            torch.zeros(tiles, dtype=torch.int32, device=self.device),
        )

    def run(self, x, gain, weight, out, kept) -> None:
        """Launch it on these tensors."""
        given = (x, weight, out) if self.tensors == 3 else (x, x if gain is None else gain, weight, out)
        issue(
            self.kernel,
            self.grid,
            given,
            (*given, *kept, *self.numbers),
            self.constants,
            self.plan,
            self.early,
        )


_calls: dict[tuple, _Call] = {}


def _call(x, gain, eps, weight, out, plan: TilePlan | None) -> _Call:
    key = (
        x.shape,
        x.stride(0),
        weight.shape,
        weight.stride(0),
        out.stride(0),
        gain is None,
        eps,
        x.device,
        plan,
    )
    call = _calls.get(key)
    if call is None:
        call = _calls[key] = _plan_call(x, gain, eps, weight, out, plan)
    return call


def _plan_call(x, gain, eps, weight, out, plan: TilePlan | None) -> _Call:
    tokens, (n, k) = x.shape[0], weight.shape
    plan = plan or choose(architecture(x.device), tokens, n, k)
    if plan.is_early and gain is not None:  # a gain still to be multiplied in needs another kernel
        plan = by_rule(tokens, n, k)
    grid = (-(-n // plan.block_n), -(-tokens // plan.block_t), plan.split)
    numbers = (tokens, x.stride(0), weight.stride(0), out.stride(0), 0.0 if eps is None else eps)
    common = {"N": n, "K": k, "HAS_NORM": eps is not None}
    if plan.is_early:
        return _early_call(x, grid, plan, numbers, common)
    return _staged_call(x, gain, eps, grid, plan, numbers, common)


def _early_call(x, grid, plan: TilePlan, numbers: tuple, common: dict[str, Any]) -> _Call:
    """The kernel that holds its slice of the weight before x exists."""
    from latent_moe.fused_kernel.early_source import early_up_projection

    width, early = -(-common["K"] // plan.split), starts_early(x.device)
    constants = common | {
        "BLOCK_T": plan.block_t, "BLOCK_N": plan.block_n, "SLICE": width, "WIDTH": 1 << (width - 1).bit_length(),
        "SPLIT": plan.split, "ROWS": plan.form == "rows", "PDL": early, "WIDE_DOT": interpreted(),
    }  # fmt: skip
    return _Call(early_up_projection, grid, plan, numbers, constants, x.device, 3, early)


def _staged_call(x, gain, eps, grid, plan: TilePlan, numbers: tuple, common: dict[str, Any]) -> _Call:
    """The kernel that loads its tiles step by step."""
    from latent_moe.fused_kernel.source import fused_up_projection

    gram = plan.form == "gram" and gain is None
    constants = common | {
        "HAS_GAIN": eps is not None and gain is not None, "BLOCK_T": plan.block_t, "BLOCK_N": plan.block_n,
        "BLOCK_K": plan.block_k, "SPLIT": plan.split, "SWAP": plan.form == "swapped", "GRAM": gram,
        "FINISH": _must_finish(eps, gain, gram), "WIDE_DOT": interpreted(),
    }  # fmt: skip
    return _Call(fused_up_projection, grid, plan, (*numbers, 1.0), constants, x.device, 4)


def issue(kernel, grid, tensors, arguments, constants: dict, plan: TilePlan, early: bool) -> None:
    """Launch `kernel`; `constants` in the order of its signature, after its `arguments`.

    Triton looks at every argument of every call to find the compiled kernel. What it looks for is told by the key
    here: types, constants, numbers that divide by 16 or are 1; with tensors that lie at multiples of 16 bytes.
    """
    if interpreted() or any(t.data_ptr() % 16 for t in tensors):
        _compile_and_run(kernel, grid, arguments, constants, plan, early)
        return
    numbers = tuple((a == 1, a % 16 == 0) for a in arguments if type(a) is int)
    constant = tuple(constants.values())
    key = (kernel.__name__, tensors[0].device, tuple(t.dtype for t in tensors), numbers, plan, constant)
    ready = _compiled.get(key)
    if ready is None:
        _compiled[key] = _compile_and_run(kernel, grid, arguments, constants, plan, early)
    else:
        ready[grid](*arguments, *constant, stream=torch._C._cuda_getCurrentRawStream(tensors[0].device.index))


def _compile_and_run(kernel, grid, arguments, constants: dict, plan: TilePlan, early: bool):
    options: dict[str, Any] = {"num_warps": plan.warps, "num_stages": plan.stages, **FP_FUSION}
    if early:
        options["launch_pdl"] = True
    return kernel[grid](*arguments, **constants, **options)


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


@cache
def starts_early(device: torch.device) -> bool:
    """Whether the device has programmatic dependent launch: NVIDIA's from Hopper on."""
    return (
        device.type == "cuda" and not torch.version.hip and torch.cuda.get_device_capability(device) >= (9, 0)
    )
