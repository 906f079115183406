"""Every reader against real recordings, whose totals were counted from the raw records (durations in ns)."""

import pytest

from latent_moe.errors import InputError
from latent_moe.lab.traces import metrics
from latent_moe.lab.traces.read import read

TOTALS = {
    "mi350x_rocprofv3_results.json.gz": (43_915, 4_441_741_378, 4_233_112_334, 80),
    "mi350x_rocpd_small.db": (4_000, 2_241_969_453, None, 80),
    "rocprofv3_uv_decode_kernel_trace.csv": (144, 1_857_381, None, None),
    "rocprofv3_lumi_mi250x.pftrace": (64, 7_540_118_525, None, None),
    "kineto_mi300x_qwen.json.gz": (1_516, 43_062_042, None, None),
    "kineto_vllm_decode_graph.json.gz": (425, 10_674_517, None, None),
    "rocprof_v1_stats.csv": (None, 1_837_699_354, None, None),
    "rocprofv3_docs_6.2.0_kernel_trace.csv": (1, None, None, None),
}
GEMMS = {
    "mi350x_rocprofv3_results.json.gz": (5_350, 65_590_500),
    "kineto_mi300x_qwen.json.gz": (243, 16_887_733),
    "kineto_vllm_decode_graph.json.gz": (73, 1_230_560),
}
NOT_KERNELS = {
    "rocprofv3_7x_docs_marker_api_trace.csv": "marker trace",
    "rocprofv3_7x_docs_counter_collection.csv": "counter collection",
    "rocprofv3_7x_docs_hip_api_stats.csv": "statistics",
    "rocprofv3_7x_docs_rocpd-to-csv.csv": "API trace",
}


@pytest.mark.parametrize("file", TOTALS)
def test_totals_are_those_of_the_raw_records(shared, file):
    calls, total, busy, names = TOTALS[file]
    trace = read(shared / "traces" / file)
    assert calls in (None, metrics.calls(trace.kernels))
    assert total in (None, metrics.total_ns(trace.kernels))
    assert busy in (None, metrics.busy_ns(trace.kernels))
    assert names in (None, len(trace.kernels["name"].values))
    assert not trace.partial


@pytest.mark.parametrize("file", GEMMS)
def test_tensile_kernels_by_name(shared, file):
    kernels = read(shared / "traces" / file).kernels
    rows = [row for row in metrics.group(kernels, "name") if row.key.startswith("Cijk")]
    assert (sum(row.calls for row in rows), sum(row.total_ns for row in rows)) == GEMMS[file]


def test_collectives_of_the_training_run(shared):
    kernels = read(shared / "traces" / "mi350x_rocprofv3_results.json.gz").kernels
    found = {row.key: row for row in metrics.group(kernels, "kind")}["collective"]
    assert (found.calls, found.total_ns) == (1_310, 4_158_756_678)


def test_small_overlaps_of_a_real_queue_are_not_clipped(shared):
    trace = read(shared / "traces" / "mi350x_rocprofv3_results.json.gz")
    assert not trace.kernels["flagged"].any()
    assert "impossible_duration" not in {warning.code for warning in trace.warnings}


def test_graph_replay_keeps_every_kernel(shared):
    kernels = read(shared / "traces" / "kineto_vllm_decode_graph.json.gz").kernels
    assert len(set(kernels["correlation"].tolist())) == 5
    assert len(kernels) == 425


@pytest.mark.parametrize("file", NOT_KERNELS)
def test_other_files_are_named_as_what_they_are(shared, file):
    with pytest.raises(InputError, match=NOT_KERNELS[file]) as error:
        read(shared / "traces" / file)
    assert file in str(error.value)


def test_the_whole_folder_and_its_small_copy_count_once(shared):
    paths = [shared / "traces" / f for f in ("mi350x_rocprofv3_results.json.gz", "mi350x_rocpd_small.db")]
    trace = read(paths)
    assert len(trace.kernels) == 43_915
    assert "same_run" in {warning.code for warning in trace.warnings}
