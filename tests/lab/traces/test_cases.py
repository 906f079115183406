"""Small inputs with one fault or trap each, and what a right reading of them is."""

import pytest

from latent_moe.errors import InputError
from latent_moe.lab.traces import metrics
from latent_moe.lab.traces.collectives import collectives
from latent_moe.lab.traces.read import read


@pytest.fixture
def case(fixtures):
    return lambda name, **options: read(fixtures / "traces" / name, **options)


def rows(trace, by="name"):
    return {row.key: (row.calls, row.total_ns) for row in metrics.group(trace.kernels, by)}


def codes(trace):
    return {warning.code for warning in trace.warnings}


def test_rocm_62_layout_without_correlation_ids(case):
    trace = case("v62_kernel_trace.csv")
    found = {row.key.split("(")[0]: row for row in metrics.group(trace.kernels, "name")}
    assert (found["void tile_mm<float, 64, 64>"].total_ns, found["void tile_mm<float, 64, 64>"].mean_ns) == (
        101_000,
        50_500,
    )
    assert (found["scale"].calls, found["scale"].total_ns) == (1, 2_500)
    busy = {key["agent"]: busy for key, _, _, busy in metrics.busy_by(trace.kernels)}
    assert busy == {"Agent 1": 101_000, "Agent 2": 2_500}


def test_byte_order_mark_crlf_quotes_and_two_guids(case):
    trace = case("bom_crlf.csv")
    assert (len(trace.processes), metrics.calls(trace.kernels), metrics.total_ns(trace.kernels)) == (
        2,
        3,
        93_000,
    )


def test_an_impossible_duration_is_clipped_and_flagged(case):
    trace = case("impossible.pt.trace.json")
    assert int(trace.kernels["flagged"].sum()) == 1
    assert "impossible_duration" in codes(trace)
    assert sorted(rows(trace).values()) == [(3, 120_000), (3, 125_000)]


def test_rows_that_the_view_drops_are_read(case):
    trace = case("view_drops_rows.db")
    assert (len(trace.kernels), metrics.total_ns(trace.kernels)) == (4, 124_500)
    assert rows(trace)["add_bias"] == (1, 2_000)
    assert "view_disagrees" in codes(trace)


def test_a_truncated_file_names_its_last_byte(case):
    with pytest.raises(InputError, match=r"truncated_results.json: truncated JSON, it ends at byte 11834"):
        case("truncated_results.json")


def test_salvage_reads_whole_records_and_says_partial(case):
    trace = case("truncated_results.json", salvage=True)
    assert (len(trace.kernels), metrics.total_ns(trace.kernels), trace.partial) == (16, 6_400, True)


@pytest.mark.parametrize("name", ["header_only_kernel_trace.csv", "metadata_only.pt.trace.json"])
def test_a_file_without_kernels_says_so(case, name):
    with pytest.raises(InputError, match=f"{name}: no kernels"):
        case(name)


def test_an_empty_file_says_so(case):
    with pytest.raises(InputError, match=r"zero_bytes_results.json: empty file"):
        case("zero_bytes_results.json")


def test_graph_replay_is_not_deduplicated_by_correlation_id(case):
    trace = case("graph_replay.pt.trace.json")
    assert (len(trace.kernels), metrics.total_ns(trace.kernels)) == (6, 89_000)
    assert rows(trace, "kind")["gemm"] == (4, 81_000)
    assert rows(trace, "name")["rmsnorm"] == (2, 8_000)


def test_replicated_and_sharded_sums_and_unions(case):
    replicated, sharded = case("replicated_kernel_trace.csv"), case("sharded_kernel_trace.csv")
    assert rows(replicated, "kind") == {"gemm": (12, 1_200_000)}
    assert rows(sharded, "kind") == {"gemm": (12, 360_000), "collective": (12, 540_000)}
    # Four agents, three steps: 75,000 ns summed and 65,000 ns busy for each.
    assert (metrics.total_ns(sharded.kernels), metrics.busy_ns(sharded.kernels)) == (12 * 75_000, 12 * 65_000)
    assert collectives(sharded.kernels).overlap_with_gemm_ns == 12 * 10_000
    assert [row.calls for row in metrics.group(sharded.kernels, "rank")] == [6, 6, 6, 6]


def test_several_devices_without_a_collective_is_a_warning(case):
    assert "no_collectives" in codes(case("replicated_kernel_trace.csv"))
    assert "no_collectives" not in codes(case("sharded_kernel_trace.csv"))
