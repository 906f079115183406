"""The two tails as functions: same result, same collectives, own columns only."""

import core_ranks
import pytest
import torch

from latent_moe.errors import InputError
from latent_moe.parallel import TensorParallel, launch
from latent_moe.tails import RMSNorm, column_parallel


@pytest.fixture(scope="module", params=[2, 4, 8])
def ran(request):
    return launch(core_ranks.tails, request.param)


def test_every_rank_has_the_sum(ran):
    routed = sum(rank["routed"].double() for rank in ran)
    shared = sum(rank["shared"].double() for rank in ran)
    expected = routed @ ran[0]["weight"].double().t() + shared
    for rank in ran:
        for answer in rank["answers"].values():
            error = (answer["out"].double() - expected).norm() / expected.norm()
            assert error <= 1e-6


def test_before_the_last_reduce_only_own_columns_are_written(ran):
    for number, rank in enumerate(ran):
        width = 64 // len(ran)
        own = torch.zeros(64, dtype=torch.bool)
        own[number * width : (number + 1) * width] = True
        for how in ("epilogue", "add"):
            changed = (rank["answers"][how]["before_last_reduce"] != rank["shared"]).any(0)
            assert torch.equal(changed, own)


def test_same_collectives_with_the_same_bytes(ran):
    for rank in ran:
        issued = rank["answers"]["replicated"]["issued"]
        assert issued == [("all_reduce", 6 * 32 * 4), ("all_reduce", 6 * 64 * 4)]
        assert issued == rank["answers"]["epilogue"]["issued"] == rank["answers"]["add"]["issued"]


def test_unknown_accumulate():
    x = torch.zeros(2, 4)
    with pytest.raises(InputError, match=r"unknown accumulate 'magic' \(there are: epilogue, add\)"):
        column_parallel(x, x.clone(), torch.zeros(4, 4), None, TensorParallel.single(), accumulate="magic")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rms_norm_against_its_formula(dtype):
    x = (torch.randn(5, 300) * 20).to(dtype)
    norm = RMSNorm(300, 1e-5, dtype)
    norm.weight.copy_(torch.rand(300))
    wide = x.double()
    expected = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * norm.weight.double()
    error = (norm(x).double() - expected).norm() / expected.norm()
    assert norm(x).dtype == dtype
    assert error <= (1e-6 if dtype == torch.float32 else 4e-3)
