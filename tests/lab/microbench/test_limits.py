"""The limit beside a tail's time: the longer of bytes and FLOP at the peaks, and one launch, for known machines."""

import pytest

from latent_moe.config import preset
from latent_moe.lab.cost import hardware
from latent_moe.lab.cost.tail_timings import read
from latent_moe.lab.microbench.sweep import limit_us, with_limits

K3 = preset("kimi-k3")


def test_kimi_k3_at_one_token_on_eight_h200():
    h200 = hardware.get("h200")
    weight_us = 896 * 3584 * 2 / 4.8e6
    assert limit_us(K3, 8, 1, "bfloat16", h200) == pytest.approx(weight_us + h200.graph_node_us, rel=0.01)
    # The arithmetic alone: 105 GFLOP at the data sheet's 989 TFLOP/s.
    assert limit_us(K3, 8, 16384, "bfloat16", h200) == pytest.approx(106.4 + h200.graph_node_us, rel=0.01)
    # An eager launch is no graph's node.
    assert limit_us(K3, 8, 1, "bfloat16", h200, "eager") != limit_us(K3, 8, 1, "bfloat16", h200)


def test_no_recorded_time_is_below_its_limit():
    rows = [row for row in read("h200_tp8_shapes") if row["mode"] == "graph"]
    limited = [row for row in with_limits(rows, K3, 8, "bfloat16", "NVIDIA H200") if "limit_us" in row]
    assert {row["tail"] for row in limited} == {"column_parallel", "fused"}
    assert all(row["median_us"] > row["limit_us"] > 0 for row in limited)


def test_an_unknown_device_has_no_limit():
    rows = [{"tail": "fused", "tokens": 1}]
    assert with_limits(rows, K3, 8, "bfloat16", "AMD EPYC, 2 cores") == rows
