"""Every tail that needs no GPU on real ranks: right at every T, their collectives, bad input."""

import extra_ranks
import pytest
import torch
from extra_ranks import H, L

from latent_moe.errors import InputError
from latent_moe.parallel import TensorParallel, launch
from latent_moe.tail_variants.pipelined import pieces, pipelined
from latent_moe.tail_variants.registry import TAILS
from latent_moe.tail_variants.token_parallel import padded_rows, token_parallel

BOUNDS = {"float32": 1e-5, "bfloat16": 1e-2}


@pytest.fixture(scope="module", params=[2, 4, 8])
def ran(request):
    return launch(extra_ranks.all_tails, request.param)


def test_within_bounds_at_every_t(ran):
    for rank in ran:
        for one in rank:
            dtype = getattr(torch, one["dtype"])
            ref = extra_ranks.reference(one["tokens"], len(ran), dtype, one["with_norm"])
            assert one["out"].shape == ref.shape
            error = ((one["out"].double() - ref).norm() / ref.norm()).item()
            assert error <= BOUNDS[one["dtype"]], {key: one[key] for key in ("tail", "options", "tokens")}


def test_every_rank_has_the_same_result(ran):
    for same in zip(*ran, strict=True):
        for other in same[1:]:
            if same[0]["tail"] in ("replicated", "overlap", "joint"):
                # Each rank projects by itself: the same numbers, up to rounding.
                torch.testing.assert_close(other["out"], same[0]["out"], rtol=1e-2, atol=1e-2)
            else:
                assert torch.equal(other["out"], same[0]["out"]), same[0]["tail"]


def bytes_of(one, kind):
    return sum(size for name, size in one["issued"] if name == kind)


def test_what_travels(ran):
    tp = len(ran)
    for one in ran[0]:
        size = 4 if one["dtype"] == "float32" else 2
        padded = -(-one["tokens"] // tp) * tp
        if one["tail"] == "token_parallel":
            assert bytes_of(one, "reduce_scatter") == padded * (L + H) * size
            assert bytes_of(one, "all_gather") == padded * H * size
            assert bytes_of(one, "all_reduce") == 0
        elif one["tail"] == "row_parallel":
            assert bytes_of(one, "all_reduce") == one["tokens"] * (L + H) * size
            assert bytes_of(one, "all_gather") == padded * H * size
            assert len(one["issued"]) == 3
        elif one["tail"] == "joint":
            assert one["issued"] == [("all_reduce", one["tokens"] * (L + H) * size)]
        else:
            assert bytes_of(one, "all_reduce") == one["tokens"] * (L + H) * size
            assert {name for name, _ in one["issued"]} == {"all_reduce"}


def test_chunks_cut_the_collectives(ran):
    counts = {
        (one["tail"], one["options"].get("chunks")): len(one["issued"])
        for one in ran[0]
        if one["tokens"] == 33 and one["dtype"] == "float32" and "accumulate" not in one["options"]
    }
    assert counts[("pipelined", 1)] == 2
    assert counts[("pipelined", 3)] == 6
    assert counts[("token_parallel", 1)] == 3
    assert counts[("token_parallel", 2)] == 6


class Recorder(TensorParallel):
    """One rank that writes down when collectives are issued and waited for; they move nothing."""

    log: list

    def all_reduce(self, x, async_op=False):
        self.log.append(("issue", x.shape[-1]))
        return _Handle(self.log, x.shape[-1]) if async_op else x


class _Handle:
    def __init__(self, log, width):
        self.log, self.width = log, width

    def wait(self):
        self.log.append(("wait", self.width))


@pytest.mark.parametrize("name", ["overlap", "pipelined"])
def test_work_goes_on_between_issue_and_wait(name):
    tp = Recorder(0, 2)
    tp.log = []

    def norm(x):
        tp.log.append(("norm", x.shape[0]))
        return x

    tail = TAILS[name]
    routed, shared = torch.ones(8, L), torch.ones(8, H)
    weight = torch.ones(H if tail.rows == "all" else H // 2, L)
    tail.function(routed, shared, weight, norm, tp)
    first_sum, last_norm = tp.log.index(("issue", H)), max(i for i, e in enumerate(tp.log) if e[0] == "norm")
    # Something is computed after the hidden partial's reduction was issued and before it is waited for.
    assert first_sum < last_norm < tp.log.index(("wait", H))


@pytest.mark.parametrize("tail", [pipelined, token_parallel])
def test_a_negative_number_of_chunks_is_refused(tail):
    with pytest.raises(InputError, match="at least 1"):
        tail(torch.ones(4, L), torch.ones(4, H), torch.ones(H, L), None, TensorParallel.single(), chunks=-1)


@pytest.mark.parametrize("tokens", [0, 1, 5, 16, 33])
@pytest.mark.parametrize("count", [1, 2, 3, 7])
@pytest.mark.parametrize("multiple", [1, 4])
def test_pieces_cover_every_row_once(tokens, count, multiple):
    cut = pieces(tokens, count, multiple)
    assert [row for piece in cut for row in range(tokens)[piece]] == list(range(tokens))
    assert len(cut) <= count
    assert all((piece.stop - piece.start) % multiple == 0 for piece in cut[:-1])


def test_padding_adds_zero_rows_only_where_needed():
    x = torch.ones(6, 3)
    assert padded_rows(x, 3) is x
    longer = padded_rows(x, 4)
    assert torch.equal(longer[:6], x)
    assert (longer.shape, longer[6:].abs().sum().item()) == ((8, 3), 0)
