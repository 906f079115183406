"""Compiles the fused kernel for AMD GPUs on a machine that has none, and reads the assembly's own figures.

python -m tools.studies.compile_check [OUT.csv]
"""

import csv
import re
import sys
from dataclasses import asdict, dataclass, replace

from latent_moe.fused_kernel.tile_plan import TilePlan, choose

# Local data share a workgroup may use: 160 KiB on CDNA4, 64 KiB on CDNA3 (AMD's CDNA white papers).
LDS_LIMIT_BYTES = {"gfx950": 160 * 1024, "gfx942": 64 * 1024}
# (N, K) of Kimi-K3's up-projection on one rank, and the buckets of T.
TP8, TP2 = (896, 3584), (3584, 3584)
BUCKETS = (1, 32, 64, 128)
POINTERS = ("x", "gain", "weight", "out")


@dataclass(frozen=True)
class Compiled:
    """What the compiler says of one kernel: matrix instructions, registers, spills, LDS bytes."""

    arch: str
    dtype: str
    bucket: int
    n: int
    k: int
    block_t: int
    block_n: int
    block_k: int
    split: int
    form: str
    gain: str
    mfma: int
    vgpr: int
    vgpr_spills: int
    sgpr_spills: int
    lds_bytes: int
    lds_limit_bytes: int


def compile_for(
    arch: str,
    tokens: int,
    n: int,
    k: int,
    dtype: str = "bf16",
    plan: TilePlan | None = None,
    gain: str = "folded",
) -> Compiled:
    """Compile for gfx950 or gfx942; n = H/tp, k = L, dtype bf16 or fp16, gain "folded" or "separate"; no GPU."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from latent_moe.fused_kernel.source import fused_up_projection

    plan = plan or choose(arch, tokens, n, k)
    types, constants = _signature(fused_up_projection, dtype, n, k, plan, gain == "separate")
    attrs = {
        (index,): [["tt.divisibility", 16]]
        for index, kind in enumerate(types.values())
        if kind != "fp32" and kind != "constexpr"
    }
    source = ASTSource(fused_up_projection, types, constants, attrs)
    options = {"num_warps": plan.warps, "num_stages": min(plan.stages, 2)}
    kernel = triton.compile(source, target=GPUTarget("hip", arch, 64), options=options)
    return _read(kernel.asm["amdgcn"], kernel.metadata.shared, arch, dtype, tokens, n, k, plan, gain)


def _signature(kernel, dtype: str, n: int, k: int, plan: TilePlan, gain: bool):
    constants = {
        "N": n, "K": k, "HAS_NORM": True, "HAS_GAIN": gain, "BLOCK_T": plan.block_t, "BLOCK_N": plan.block_n,
        "BLOCK_K": plan.block_k, "SPLIT": plan.split, "SWAP": plan.form == "swapped",
        "GRAM": plan.form == "gram", "FINISH": False, "WIDE_DOT": False,
    }  # fmt: skip
    types = {}
    for name in kernel.arg_names:
        if name in constants:
            types[name] = "constexpr"
        elif name in POINTERS:
            types[name] = f"*{dtype}"
        else:
            types[name] = {
                "partials": "*fp32",
                "squares": "*fp32",
                "tickets": "*i32",
                "eps": "fp32",
                "one": "fp32",
            }.get(name, "i32")
    return types, constants


def _read(
    assembly: str, shared: int, arch: str, dtype: str, tokens: int, n: int, k: int, plan: TilePlan, gain: str
) -> Compiled:
    return Compiled(
        arch=arch, dtype=dtype, bucket=tokens, n=n, k=k,
        block_t=plan.block_t, block_n=plan.block_n, block_k=plan.block_k, split=plan.split,
        form=plan.form, gain=gain,
        mfma=len(re.findall(r"^\s*v_mfma_", assembly, re.M)),
        vgpr=_figure(assembly, "vgpr_count"),
        vgpr_spills=_figure(assembly, "vgpr_spill_count"),
        sgpr_spills=_figure(assembly, "sgpr_spill_count"),
        lds_bytes=shared,
        lds_limit_bytes=LDS_LIMIT_BYTES[arch],
    )  # fmt: skip


def _figure(assembly: str, name: str) -> int:
    # The kernel's metadata at the end of the assembly, as the code object carries it.
    return int(re.findall(rf"^\s*\.{name}:\s*(\d+)", assembly, re.M)[-1])


def table() -> list[Compiled]:
    """Kimi-K3's shapes at TP = 8 and TP = 2, every bucket of T the fused tail is meant for.

    At TP = 8 also with the gain multiplied in by the kernel, and with the transposed product.
    """
    return [row for arch in LDS_LIMIT_BYTES for tokens in BUCKETS for row in _forms(arch, tokens)]


def _forms(arch: str, tokens: int) -> list[Compiled]:
    swapped = replace(choose(arch, tokens, *TP8), form="swapped")
    return [
        compile_for(arch, tokens, *TP8),
        compile_for(arch, tokens, *TP2),
        compile_for(arch, tokens, *TP8, gain="separate"),
        compile_for(arch, tokens, *TP8, plan=swapped),
    ]


def write(rows: list[Compiled], file) -> None:
    """The rows as CSV."""
    writer = csv.DictWriter(file, fieldnames=list(asdict(rows[0])))
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)


def write_to(arguments: list[str], rows: list) -> None:
    """The rows as CSV into the file that the first argument names, else on standard output."""
    if not arguments:
        return write(rows, sys.stdout)
    with open(arguments[0], "w", newline="", encoding="utf-8") as target:
        return write(rows, target)


if __name__ == "__main__":
    write_to(sys.argv[1:], table())
