"""Any table as Chrome-trace JSON: readable again, nothing lost, overlaps in lanes."""

import gzip
import json

import numpy as np
import pytest

from latent_moe.errors import InputError
from latent_moe.lab.traces import metrics
from latent_moe.lab.traces.export import write_chrome_trace
from latent_moe.lab.traces.read import read
from latent_moe.lab.traces.table import Ranges, Trace, kernels_from, ranges_from


def small() -> Trace:
    kernels = kernels_from(
        3,
        **{
            "process": ["7"] * 3,
            "agent": ["GPU 0"] * 3,
            "queue": ["1"] * 3,
            "name": ['a "quoted"', "b", "a"],
        },
        **{"start_ns": [1_000_000_000_000_001, 1_000_000_000_000_500, 1_000_000_000_002_000]},
        **{"end_ns": [1_000_000_000_001_001, 1_000_000_000_001_500, 1_000_000_000_002_007]},
        **{"kind": ["gemm", "other", None], "M": [16, -1, -1], "N": [8, -1, -1], "K": [4, -1, -1]},
    )
    ranges = ranges_from(
        1, process=["7"], thread=[3], name=["tail=x"], domain=["host"],
        start_ns=[1_000_000_000_000_000], end_ns=[1_000_000_000_003_000],
    )  # fmt: skip
    return Trace(kernels, ranges, formats=["test"])


def events(path, category):
    return [e for e in json.loads(path.read_text())["traceEvents"] if e.get("cat") == category]


def test_times_are_exact_and_count_from_the_first_event(tmp_path):
    path = write_chrome_trace(small(), tmp_path / "out.json")
    assert [(e["ts"], e["dur"]) for e in events(path, "kernel")] == [(0.001, 1.0), (0.5, 1.0), (2.0, 0.007)]
    assert json.loads(path.read_text())["otherData"]["start_ns"] == 1_000_000_000_000_000
    assert [(e["name"], e["ts"], e["dur"]) for e in events(path, "user_annotation")] == [("tail=x", 0.0, 3.0)]


def test_overlapping_kernels_of_one_queue_get_lanes(tmp_path):
    found = events(write_chrome_trace(small(), tmp_path / "out.json"), "kernel")
    assert found[0]["pid"] == found[1]["pid"]
    assert found[0]["tid"] != found[1]["tid"]
    assert found[0]["tid"] == found[2]["tid"]


def test_what_is_missing_is_left_out(tmp_path):
    found = events(write_chrome_trace(small(), tmp_path / "out.json"), "kernel")
    assert found[0]["args"]["kind"] == "gemm"
    assert (found[0]["args"]["M"], found[0]["args"]["N"], found[0]["args"]["K"]) == (16, 8, 4)
    assert "kind" not in found[2]["args"]
    assert "M" not in found[1]["args"]


def test_kernels_without_a_time_are_counted_not_drawn(tmp_path):
    trace = Trace(kernels_from(2, name=["a", "b"], process=["p", "p"]), Ranges(0))
    path = write_chrome_trace(trace, tmp_path / "out.json")
    assert events(path, "kernel") == []
    assert json.loads(path.read_text())["otherData"]["untimed_kernels"] == 2


def test_packed_when_asked(tmp_path):
    path = write_chrome_trace(small(), tmp_path / "out.json.gz")
    assert len(json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]) > 4


def test_a_file_that_cannot_be_written(tmp_path):
    with pytest.raises(InputError, match="cannot be written"):
        write_chrome_trace(small(), tmp_path / "missing" / "out.json")


@pytest.mark.parametrize(
    "name",
    ["mi350x_rocpd_small.db", "rocprofv3_uv_decode_kernel_trace.csv", "kineto_vllm_decode_graph.json.gz"],
)
def test_real_recordings_read_back_with_the_same_sums(shared, tmp_path, name):
    before = read(shared / "traces" / name)
    after = read(write_chrome_trace(before, tmp_path / "out.json"))
    for figure in (metrics.calls, metrics.total_ns, metrics.busy_ns):
        assert figure(after.kernels) == figure(before.kernels)
    assert np.array_equal(np.sort(after.kernels["dur_ns"]), np.sort(before.kernels["dur_ns"]))
