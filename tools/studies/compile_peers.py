"""Compiles the kernels that exchange through peer memory for AMD GPUs on a machine that has none: registers, LDS, spills.

python -m tools.studies.compile_peers [OUT.csv]

Nothing of this runs on an AMD GPU yet: torch maps peer memory on CUDA only. Shapes are Kimi-K3's at TP = 8 and 2.
"""

import sys
from dataclasses import dataclass
from re import M, findall
from typing import Any

from latent_moe.fused_kernel.tile_plan import TilePlan
from tools.studies.compile_check import LDS_LIMIT_BYTES, _figure, write_to

K, H = 3584, 7168
# By kernel: T, and the plan of one_launch there.
WHOLE = {1: TilePlan(1, 8, K, 1, 4, 1, "rows"), 8: TilePlan(8, 64, 512, 7, 4, 1, "early"), 16: TilePlan(16, 64, 512, 7, 4, 1, "early")}  # fmt: skip
POINTERS = {"table": "*i64", "numbers": "*i32", "status": "*i32", "tickets": "*i32", "partials": "*fp32", "squares": "*fp32"}  # fmt: skip


@dataclass(frozen=True)
class CompiledPeer:
    """What the compiler says of one kernel on one architecture."""

    arch: str
    kernel: str
    tp: int
    tokens: int
    mfma: int
    vgpr: int
    vgpr_spills: int
    sgpr_spills: int
    lds_bytes: int
    lds_limit_bytes: int


def compile_peer(arch: str, name: str, tp: int, tokens: int) -> CompiledPeer:
    """Compile one_launch_tail, sum_to_all or sum_by_owner for gfx950 or gfx942; no GPU is needed."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from latent_moe.fused_kernel import one_launch_source, peer_sum_source

    kernel = getattr(one_launch_source if name == "one_launch_tail" else peer_sum_source, name)
    constants = {"PDL": False, "CLOCK": "hip", "TP": tp, **_constants(name, tp, tokens)}
    types = {key: "constexpr" if key in constants else _type(key) for key in kernel.arg_names}
    attrs = {
        (index,): [["tt.divisibility", 16]]
        for index, (key, kind) in enumerate(types.items())
        if kind.startswith("*") or key.startswith("stride")
    }
    source = ASTSource(kernel, types, constants, attrs)
    made = triton.compile(
        source, target=GPUTarget("hip", arch, 64), options={"num_warps": 4, "num_stages": 1}
    )
    text = made.asm["amdgcn"]
    return CompiledPeer(
        arch, name, tp, tokens,
        len(findall(r"^\s*v_mfma_", text, M)),
        *(_figure(text, figure) for figure in ("vgpr_count", "vgpr_spill_count", "sgpr_spill_count")),
        made.metadata.shared, LDS_LIMIT_BYTES[arch],
    )  # fmt: skip


def _constants(name: str, tp: int, tokens: int) -> dict[str, Any]:
    n = H // tp
    if name == "sum_to_all":
        return {"CAPACITY": tokens * K // 2, "BLOCK": 256}
    if name == "sum_by_owner":
        return {"N": n, "CAPACITY": tokens * n // 2, "BLOCK": 256}
    plan = WHOLE[tokens]
    part = K // plan.split
    return {
        "N": n, "K": K, "CAPACITY": tokens, "HAS_NORM": True, "BLOCK_T": plan.block_t, "BLOCK_N": plan.block_n,
        "SLICE": part, "WIDTH": 1 << (part // 2 - 1).bit_length(), "SPLIT": plan.split, "ROWS": plan.form == "rows",
        "WIDE_DOT": False,
    }  # fmt: skip


def _type(name: str) -> str:
    if name in ("x", "routed", "shared", "weight"):
        return "*bf16"
    return POINTERS.get(name, "fp32" if name == "eps" else "i32")


def table() -> list[CompiledPeer]:
    """Every kernel at both tensor-parallel sizes, on both architectures."""
    names = [("one_launch_tail", tokens) for tokens in WHOLE] + [("sum_to_all", 16), ("sum_by_owner", 16)]
    return [compile_peer(arch, name, tp, t) for arch in LDS_LIMIT_BYTES for tp in (2, 8) for name, t in names]


if __name__ == "__main__":
    write_to(sys.argv[1:], table())
