"""A GEMM kernel's name taken apart: macro tile, transposes, data types, flags.

Tensile (hipBLASLt, rocBLAS) names follow its KernelWriter: `Cijk_A<ik>_B<jk>_<types>_<flags>_..._MT<m>x<n>x<k>_...`.
BLAS is column-major: Ailk means A is stored [i, k] (not transposed), Alik [k, i] (transposed); Bljk is not
transposed, Bjlk is. PyTorch's row-major x @ W^T arrives as "TN" with A = W, so its tile is features x tokens.
What a name does not state is None, not a default.
"""

import re
from dataclasses import dataclass

from latent_moe.lab.traces.kernel_names.classify import classify, plain

DTYPES = {
    **{
        "S": "f32",
        "D": "f64",
        "C": "c32",
        "Z": "c64",
        "H": "f16",
        "B": "bf16",
        "I8": "i8",
        "4xi8": "i8",
        "I": "i32",
    },
    **{
        "X": "xf32",
        "F8N": "f8_e4m3fnuz",
        "B8N": "f8_e5m2fnuz",
        "F8": "f8_e4m3",
        "B8": "f8_e5m2",
        "F6": "f6",
        "B6": "bf6",
    },
    **{"F4": "f4"},
}
_DTYPE = re.compile("|".join(sorted(DTYPES, key=len, reverse=True)))
_TENSILE = re.compile(r"Cijk_A(ilk|lik)(C?)_B(ljk|jlk)(C?)(?:_(\w*))?")
_TYPES = re.compile(rf"(?:{_DTYPE.pattern})+$")
_FLAGS = re.compile(r"[BHI]{1,3}$")
_PAIR = r"(\d+)x(\d+)"
# Where each library writes its tile, in the order in which the spellings can be told apart.
_TILES = (
    re.compile(rf"_MT{_PAIR}x(\d+)"),
    re.compile(r"BLOCK_SIZE_M_(\d+)_BLOCK_SIZE_N_(\d+)(?:_BLOCK_SIZE_K_(\d+))?"),
    re.compile(r"BLOCK_M_(\d+)_BLOCK_N_(\d+)(?:_BLOCK_K_(\d+))?"),
    re.compile(rf"tilesize{_PAIR}x(\d+)"),
    # CUTLASS 3: tile and cluster, both of three numbers; CUTLASS 2 and cuBLAS: tile, then K and stages.
    re.compile(rf"_{_PAIR}x(\d+)_\d+x\d+x\d+_"),
    re.compile(rf"nvjet_\w*?_{_PAIR}_(\d+)x\d+"),
    re.compile(rf"gemm_(?:[a-z]\w*?_)?{_PAIR}_(\d+)x\d+(?:_|$)"),
    re.compile(rf"gemm_(?:[a-z]\w*?_)?{_PAIR}_\w*?stages_(\d+)x\d+"),
    re.compile(rf"_matmul_ogs_\w+?_{_PAIR}x(\d+)x\d+"),
    re.compile(rf"(?:gemm|mm)_(?:[a-z]\w*?_)?t?{_PAIR}x(\d+)"),
    re.compile(rf"^bmm_\w*?_t{_PAIR}x(\d+)"),
    re.compile(rf"gemm_(?:\w*?_)?{_PAIR}()(?:_|[a-zA-Z]|$)"),
    re.compile(r"TileGemmShape<\s*(?:ck_tile::)?sequence<(\d+), (\d+), (\d+)>"),
)
_TRANSPOSES = re.compile(r"_([nt])([nt])[nt]?(?:_|\d|$)|_([NT])([NT])[NT]?$|_(?:S\d|r[MN]_)([NT])([NT])_")
# CK: the block's threads, perhaps three scale blocks, then nine numbers that begin with M, N and K per block.
_CK_NUMBERS = re.compile(r"GemmSpecialization\)\d+, ([\d, ]+?), (?:ck::)?S(?:equence)?<")
_LAYOUTS = re.compile(r"tensor_layout::gemm::(Row|Column)Major")


@dataclass(frozen=True)
class GemmName:
    """What the name states. `tile` is (M, N, K) of the macro tile in the library's own (column-major) sense, K None
    where it is not stated; `transposes` is "TN" and so on for A and B.

    `accumulates` says that the kernel can add into C (Tensile's UseBeta): whether a call did, depends on its beta.
    `high_precision` says that it accumulates wider than it stores. `split_k` is the number of K splits the name
    fixes (0: chosen at run time), `stream_k` whether work is divided by Stream-K.
    """

    library: str
    tile: tuple[int, int, int | None] | None = None
    transposes: str | None = None
    dtype_a: str | None = None
    dtype_b: str | None = None
    dtype_out: str | None = None
    dtype_compute: str | None = None
    accumulates: bool | None = None
    high_precision: bool | None = None
    bias: bool | None = None
    activation: bool | None = None
    matrix_instruction: str | None = None
    split_k: int | None = None
    stream_k: bool | None = None
    isa: str | None = None
    helper: bool = False


def decode_gemm(name: str) -> GemmName | None:
    """Take a GEMM kernel's name apart; None when the name is no GEMM's."""
    kinds, libraries = classify([name])
    if kinds[0] != "gemm":
        return None
    text = plain(name)
    if "Cijk_" in text:
        return _tensile(text, libraries[0])
    return GemmName(library=libraries[0], tile=_tile(text), transposes=_transposes(text))


def _tensile(text: str, library: str) -> GemmName:
    match = _TENSILE.search(text)
    if match is None:
        return GemmName(library=library, tile=_tile(text), helper="PostGSU" in text or "Beta" in text)
    a, _, b, _, rest = match.groups()
    head = (rest or "").split("_MT")[0]
    whole = "_MT" in (rest or "")
    return GemmName(
        library=library,
        tile=_tile(text),
        transposes=("N" if a == "ilk" else "T") + ("N" if b == "ljk" else "T"),
        # A name cut before its tile may have lost a flag: absent is then unknown, not False.
        bias=_stated(re.search(r"(?:^|_)Bias", head), whole),
        activation=_stated(re.search(r"_(?:HA|A|RELU|GELU)(?:_|$)", head), whole),
        helper="PostGSU" in text,
        **_types(head.split("_")),
        **_schedule(text),
    )


def _stated(match, whole: bool) -> bool | None:
    return True if match else False if whole else None


def _types(tokens: list[str]) -> dict:
    """Types and flags from the leading tokens: ["BBS", "BH"], ["B", "BS", "BH"], ["S", "B"], or old ["HBH"]."""
    leading = []
    for token in tokens:
        if not (_TYPES.match(token) or _FLAGS.match(token)):
            break
        leading.append(token)
    if not leading:
        return {}
    if len(leading) == 1:
        # Old style: the input type, then the flags, in one token ("SB", "HBH").
        types, flags = _old_style(leading[0])
        # Old names do not spell the compute type; half types with the H flag accumulate in f32.
        types = [*types, *types, "S"] if "H" in flags and types[0] in "HB" else types
    else:
        types, flags = _inputs_and_outputs([_DTYPE.findall(token) for token in leading[:-1]]), leading[-1]
    return {**_named(types), "accumulates": "B" in flags, "high_precision": "H" in flags}


def _inputs_and_outputs(tokens: list[list[str]]) -> list[str]:
    """Types in one row, as one token has them; in two tokens the first holds the inputs, the second output and compute.

    The N of MI300's fp8 stands once behind a pair of such types: "B8F8N" are two of that kind.
    """
    tokens = [_paired(types) for types in tokens]
    if len(tokens) != 2 or len(tokens[0]) > 2 or len(tokens[1]) < 2:
        return [name for types in tokens for name in types]
    inputs, (out, *_, compute) = tokens
    return [*(inputs if len(inputs) == 2 else inputs * 2), out, compute]


def _paired(types: list[str]) -> list[str]:
    follows = [*types[1:], ""]
    return [
        f"{name}N" if name in ("F8", "B8") and behind in ("F8N", "B8N") else name
        for name, behind in zip(types, follows, strict=True)
    ]


def _old_style(token: str) -> tuple[list[str], str]:
    first = _DTYPE.match(token).group()  # type: ignore[union-attr]
    return [first], token[len(first) :]


def _named(types: list[str]) -> dict:
    """One type serves all; three are input, output, compute; four have the inputs apart."""
    names = [DTYPES[t] for t in types]
    spread = {1: (0, 0, 0, 0), 2: (0, 0, 1, 1), 3: (0, 0, 1, 2), 4: (0, 1, 2, 3)}.get(len(names))
    if spread is None:
        return {}
    fields = ("dtype_a", "dtype_b", "dtype_out", "dtype_compute")
    return {field: names[place] for field, place in zip(fields, spread, strict=True)}


def _schedule(text: str) -> dict:
    instruction = re.search(r"_MI(\d+x\d+x\d+(?:x\d+)?)", text)
    split = re.search(r"_GSU(\d+)(?:_|$)", text)
    stream = re.search(r"_SK(\d+)(?:_|$)", text)
    isa = re.search(r"_ISA(\d+[a-f]?)", text)
    return {
        "matrix_instruction": instruction and instruction.group(1),
        "split_k": int(split.group(1)) if split else None,
        "stream_k": stream.group(1) != "0" if stream else None,
        "isa": f"gfx{isa.group(1)}" if isa else None,
    }


def _tile(text: str) -> tuple[int, int, int | None] | None:
    for pattern in _TILES:
        if match := pattern.search(text):
            m, n, k = match.groups()
            return int(m), int(n), int(k) if k else None
    numbers = match[1].split(", ") if (match := _CK_NUMBERS.search(text)) else []
    return (int(numbers[-9]), int(numbers[-8]), int(numbers[-7])) if len(numbers) >= 9 else None


def _transposes(text: str) -> str | None:
    layouts = _LAYOUTS.findall(text)
    if len(layouts) >= 2:
        return "".join("N" if layout == "Row" else "T" for layout in layouts[:2])
    match = _TRANSPOSES.search(text)
    return "".join(part for part in match.groups() if part).upper() if match else None
