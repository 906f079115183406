"""The fused kernel compiled for gfx950 and gfx942 on a machine without them: matrix instructions, no spills, LDS."""

import csv
from dataclasses import asdict

import pytest

from latent_moe.fused_kernel.tile_plan import TilePlan
from latent_moe.lab import recordings
from tools.studies.compile_check import LDS_LIMIT_BYTES, compile_for, table, write

pytest.importorskip("triton")


@pytest.fixture(scope="module")
def rows():
    return table()


def test_every_shape_of_the_table_fits_the_chip(rows):
    assert {row.arch for row in rows} == {"gfx950", "gfx942"}
    assert {(row.n, row.k) for row in rows} == {(896, 3584), (3584, 3584)}
    for row in rows:
        assert row.mfma > 0, row
        assert (row.vgpr_spills, row.sgpr_spills) == (0, 0), row
        assert 0 < row.lds_bytes <= row.lds_limit_bytes == LDS_LIMIT_BYTES[row.arch], row
        assert 0 < row.vgpr <= 512, row


@pytest.mark.parametrize("arch", ["gfx950", "gfx942"])
@pytest.mark.parametrize(("tokens", "n", "k"), [(1, 16, 16), (7, 112, 208), (128, 1792, 3584)])
def test_fp16_and_uneven_sizes_compile_too(arch, tokens, n, k):
    row = compile_for(arch, tokens, n, k, "fp16")
    assert row.mfma > 0
    assert (row.vgpr_spills, row.sgpr_spills) == (0, 0)
    assert row.lds_bytes <= row.lds_limit_bytes


def test_the_check_sees_a_kernel_that_spills():
    row = compile_for("gfx942", 256, 1024, 1024, plan=TilePlan(256, 256, 64, 1, 4, 2))
    assert row.vgpr_spills > 0


def test_the_kept_table_is_what_compiles_today(rows):
    """Shapes, tiles and verdicts; register counts may differ with the compiler's version, which the manifest names."""
    folder = recordings.profile_path("fused_compile")
    manifest = recordings.load_manifest(folder)
    assert "not run" in manifest.device
    assert manifest.software["triton"]
    with (folder / "compile.csv").open(newline="") as file:
        kept = list(csv.DictReader(file))
    tiles = (
        "arch",
        "dtype",
        "bucket",
        "n",
        "k",
        "block_t",
        "block_n",
        "block_k",
        "split",
        "form",
        "gain",
        "lds_limit_bytes",
    )
    assert [[row[key] for key in tiles] for row in kept] == [
        [str(asdict(row)[key]) for key in tiles] for row in rows
    ]
    assert all(int(row["mfma"]) > 0 and int(row["vgpr_spills"]) == 0 for row in kept)


def test_written_as_csv(rows, tmp_path):
    with (tmp_path / "out.csv").open("w", newline="") as file:
        write(rows[:2], file)
    with (tmp_path / "out.csv").open(newline="") as file:
        assert [row["arch"] for row in csv.DictReader(file)] == ["gfx950", "gfx950"]
