"""The synthetic recordings that notebooks open: readable by hand and by reader, labelled, and as committed."""

import sqlite3

import pytest

from latent_moe.lab.recordings import load_manifest
from latent_moe.lab.traces import metrics
from latent_moe.lab.traces.compare import compare
from latent_moe.lab.traces.read import read
from tools.studies import synthetic

FOLDER = "profiles/synthetic_k3_tail"


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return synthetic.write(tmp_path_factory.mktemp("synthetic") / "synthetic_k3_tail")


@pytest.mark.parametrize("arm", synthetic.ARMS)
def test_database_and_csv_hold_the_same_run(written, arm):
    rows = synthetic.dispatches(arm)
    total = sum(row.end_ns - row.start_ns for row in rows)
    for file in ("results.db", "kernel_trace.csv"):
        trace = read(written / arm / file)
        assert (metrics.calls(trace.kernels), metrics.total_ns(trace.kernels)) == (len(rows), total)
    both = read(written / arm)
    assert metrics.total_ns(both.kernels) == total


def test_the_kernels_view_holds_every_dispatch(written):
    with sqlite3.connect(written / "replicated" / "results.db") as db:
        (count, total) = db.execute("SELECT count(*), sum(duration) FROM kernels").fetchone()
    rows = synthetic.dispatches("replicated")
    assert (count, total) == (len(rows), sum(row.end_ns - row.start_ns for row in rows))


def test_shapes_and_the_comparison(written):
    before, after = read(written / "replicated"), read(written / "column_parallel")
    gemms = after.table[after.table["kind"] == "gemm"]
    assert gemms[["M", "N", "K"]].drop_duplicates().to_numpy().tolist() == [[16, 896, 3584]]
    result = compare(before, after)
    assert result.verdict == "faster"
    assert result.per_call["gemm"]["speedup"] == pytest.approx(11_690 / 4_300)
    busy = {"replicated": 16_000 + 2_100 + 31_000 + 2_400, "column_parallel": 16_000 + 2_100 + 4_300 + 22_000}
    assert result.per_step["baseline_busy_ns"] == busy["replicated"]
    assert result.per_step["candidate_busy_ns"] == busy["column_parallel"]
    assert result.baseline.collectives.overlap_with_gemm_ns == 8 * 4 * 2_690


def test_the_committed_recording_is_what_the_writer_writes(repository, written):
    folder = repository / FOLDER
    assert load_manifest(folder).kind == "synthetic"
    for arm in synthetic.ARMS:
        csv = f"{arm}/kernel_trace.csv"
        assert (folder / csv).read_bytes() == (written / csv).read_bytes()
        committed, fresh = read(folder / arm / "results.db"), read(written / arm / "results.db")
        assert committed.table.drop(columns="source").equals(fresh.table.drop(columns="source"))
