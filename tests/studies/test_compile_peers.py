"""The kernels through peer memory compiled for gfx950 and gfx942 on a machine without them, and the kept table."""

import csv
from dataclasses import asdict

import pytest

from latent_moe.lab import recordings
from tools.studies.compile_peers import table

pytest.importorskip("triton")


@pytest.fixture(scope="module")
def rows():
    return table()


def test_every_kernel_fits_the_chip(rows):
    assert {(row.arch, row.tp) for row in rows} == {(a, tp) for a in ("gfx950", "gfx942") for tp in (2, 8)}
    for row in rows:
        assert 0 < row.lds_bytes <= row.lds_limit_bytes, row
        assert 0 < row.vgpr <= 512, row
        assert (row.mfma > 0) == (row.kernel == "one_launch_tail" and row.tokens > 1), row


def test_the_sums_spill_no_vector_register(rows):
    assert all(row.vgpr_spills == 0 for row in rows if row.kernel != "one_launch_tail")


def test_the_kept_table_has_the_same_kernels(rows):
    folder = recordings.profile_path("fused_compile")
    assert "peers.csv" in recordings.load_manifest(folder).files
    with (folder / "peers.csv").open(newline="") as file:
        kept = list(csv.DictReader(file))
    keys = ("arch", "kernel", "tp", "tokens", "lds_limit_bytes")
    assert [[row[key] for key in keys] for row in kept] == [
        [str(asdict(row)[key]) for key in keys] for row in rows
    ]
