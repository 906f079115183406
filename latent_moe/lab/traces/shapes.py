"""M, N, K of a GEMM kernel: from the profiler's input dimensions, else from the name of its region.

out[M, N] = a[M, K] @ b[K, N]; for PyTorch's x @ W^T, M counts tokens. Of a batched product it is one matrix's shape.
"""

import json
import math
import re

import numpy as np

from latent_moe.lab.traces.kernel_names import classify
from latent_moe.lab.traces.table import Coded, Kernels

Shape = tuple[int, int, int]
MISSING: Shape = (-1, -1, -1)
# Where an operator's two matrices stand among its inputs, and whether the second is stored [N, K].
_OPERANDS = {
    **dict.fromkeys(("mm", "bmm", "_scaled_mm", "_int_mm", "mv", "matmul"), (0, 1, False)),
    **dict.fromkeys(("addmm", "addmm_", "_addmm_activation", "baddbmm", "baddbmm_", "addmv"), (1, 2, False)),
    **dict.fromkeys(
        ("linear", "mkldnn_linear", "rocm_unquantized_gemm", "rocm_unquantized_gemm_impl"), (0, 1, True)
    ),
}
_NAMED = re.compile(r"(?:^|[^A-Za-z])([MNK])=(\d{1,12})(?!\d)")


def gemm_shapes(kernels: Kernels, region: Coded) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """M, N, K (int64 [n], -1 where missing) of the kernels of kind gemm."""
    shapes = _of_texts(region, from_region)
    dims = _from_dims(kernels["op"], kernels["dims"])
    shapes = np.where((dims >= 0).all(axis=1, keepdims=True), dims, shapes)
    shapes = np.where(_is_gemm(kernels["name"])[:, None], shapes, -1)
    return shapes[:, 0], shapes[:, 1], shapes[:, 2]


def from_region(name: str) -> Shape:
    """The shape that a region's name states as `M=16 N=896 K=3584`, in any order; all three or none."""
    stated = dict(_NAMED.findall(name))
    return tuple(int(stated[k]) for k in "MNK") if len(stated) == 3 else MISSING  # type: ignore[return-value]


def from_dims(op: str, dims: str) -> Shape:
    """The shape from a PyTorch operator's name and its "Input Dims" as JSON text; missing where they do not tell."""
    places = _OPERANDS.get(op.rsplit("::", 1)[-1])
    try:
        inputs = json.loads(dims)
        return MISSING if places is None else _product(inputs[places[0]], inputs[places[1]], places[2])
    except (ValueError, TypeError, IndexError, KeyError):
        return MISSING


def _product(a: list[int], b: list[int], transposed: bool) -> Shape:
    if not all(type(size) is int and 0 <= size < 1 << 40 for size in (*a, *b)):
        return MISSING
    if len(b) == 1:
        return math.prod(a[:-1]), 1, a[-1]
    k, n = (b[-1], b[-2]) if transposed else (b[-2], b[-1])
    batched = len(a) == 3 and len(b) == 3
    m = a[-2] if batched else math.prod(a[:-1])
    return (m, n, k) if a[-1] == k else MISSING


def _of_texts(column: Coded, read) -> np.ndarray:
    table = np.array([*map(read, column.values), MISSING], dtype=np.int64)
    return table[column.codes]


def _from_dims(op: Coded, dims: Coded) -> np.ndarray:
    pairs = np.where(
        (op.codes >= 0) & (dims.codes >= 0), op.codes.astype(np.int64) * len(dims.values) + dims.codes, -1
    )
    unique, inverse = np.unique(pairs, return_inverse=True)
    table = [
        from_dims(op.values[p // len(dims.values)], dims.values[p % len(dims.values)]) if p >= 0 else MISSING
        for p in unique.tolist()
    ]
    return np.array(table, dtype=np.int64).reshape(-1, 3)[inverse.reshape(-1)]


def _is_gemm(names: Coded) -> np.ndarray:
    return np.array([kind == "gemm" for kind in classify(names.values).kind] + [False])[names.codes]
