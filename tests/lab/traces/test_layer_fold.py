"""Layers found in a recording that names none."""

import numpy as np
import pytest

from latent_moe.lab.traces.layer_fold import fold_layers, layer_of
from latent_moe.lab.traces.read import read
from latent_moe.lab.traces.steps import layers
from latent_moe.lab.traces.table import Kernels, Ranges, Trace, encode

KINDS = {"N": "norm", "A": "attention", "M": "moe", "G": "gemm", "E": "elementwise"}


def _kernels(letters: str, dur_ns: int = 1000) -> Kernels:
    n = len(letters)
    start = np.arange(n, dtype=np.int64) * 2 * dur_ns
    return Kernels(
        n,
        {
            "name": encode([f"kernel_{letter}" for letter in letters]),
            "kind": encode([KINDS[letter] for letter in letters]),
            "start_ns": start,
            "end_ns": start + dur_ns,
            "dur_ns": np.full(n, dur_ns, dtype=np.int64),
            "timed": np.ones(n, dtype=bool),
        },
    )


def test_layers_between_embedding_and_head():
    fold = fold_layers(_kernels("EG" + "NGAGNGM" * 5 + "NG"))
    assert (fold.layers, [part.part for part in fold.parts]) == (5, ["attention", "moe"])
    assert fold.mean_ns == 7000
    assert fold.parts[0].kernels[1] == {"name": "kernel_G", "kind": "gemm", "calls": 2.0, "mean_ns": 2000.0}
    column = layer_of(_kernels("EG" + "NGAGNGM" * 5 + "NG"))
    assert column.objects().tolist() == [None] * 2 + [f"layer {i // 7}" for i in range(35)] + [None] * 2


def test_layers_that_take_turns_count_each():
    fold = fold_layers(_kernels("NGANM" * 1 + "NGAENGM" * 1 + "NGANM" + "NGAENGM"))
    assert fold.layers == 4


@pytest.mark.parametrize("letters", ["", "GAGM" * 6, "NGANMNGANM", "N" * 12, "NGAM"])
def test_none_where_nothing_repeats_three_times(letters):
    assert fold_layers(_kernels(letters)) is None


def test_names_of_regions_go_first():
    kernels = _kernels("NGANM" * 4)
    trace = Trace(kernels, Ranges(0))
    assert layers(trace).values == ["layer 0", "layer 1", "layer 2", "layer 3"]
    kernels["region"] = encode(["model.layers.17.mlp"] * 20)
    assert layers(trace).values == ["layer 17"]


def test_the_decode_graph_has_24_layers(shared):
    kernels = read(shared / "traces" / "kineto_vllm_decode_graph.json.gz").kernels
    fold = fold_layers(kernels)
    assert fold.layers == 24
    names = kernels["name"].objects()
    assert {sum(names[rows] == "_topk_forward") for rows in fold.rows} == {1}
    assert {sum("reshape_and_cache" in name for name in names[rows]) for rows in fold.rows} == {1}
