"""vLLM's tensor-parallel collectives without a server: on real ranks, and for `latent-moe tails`."""

import pytest
from serving_rank import sums

from latent_moe.cli import main
from latent_moe.lab.recordings import load_manifest
from latent_moe.parallel import VLLM, launch

pytestmark = pytest.mark.vllm


def test_real_ranks_sum_by_vllms_own_communicator():
    pytest.importorskip("vllm")
    one, two = launch(sums, 2)
    assert (one["sum"], two["sum"]) == (3.0, 3.0)
    assert one["communicator"] == VLLM
    assert one["by"].startswith("vllm.distributed.device_communicators.")
    assert (one["columns"], two["columns"]) == ((0, 4), (4, 8))
    assert one["left"]
    assert two["left"]


def test_tails_are_timed_and_recorded_with_them(tmp_path, capsys):
    pytest.importorskip("vllm")
    quick = ["--preset", "tiny", "--samples", "2", "--rounds", "1", "--tokens", "3", "--tails", "replicated"]
    folder = tmp_path / "here"
    assert main(["tails", *quick, "column_parallel", "--collectives", "vllm", "--record", str(folder)]) == 0
    assert "worst error against float64" in capsys.readouterr().out
    manifest = load_manifest(folder)
    assert manifest.parameters["communicator"] == VLLM
    assert manifest.software["vllm"][0].isdigit()
