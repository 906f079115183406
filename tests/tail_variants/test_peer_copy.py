"""Which buffers a step of T tokens gets: made for powers of two, handed out by their first rows."""

import pytest
import torch

from latent_moe.parallel import TensorParallel
from latent_moe.tail_variants import peer_copy
from latent_moe.tail_variants.peer_copy import Exchange, Mapped, exchange_for


@pytest.fixture
def made(monkeypatch):
    """Rooms that were mapped, in order; mapping itself needs two GPUs and is stood in for by plain tensors."""
    rooms = []

    def mapped(like, room):
        own = torch.arange(room).repeat(like.shape[1], 1).t().contiguous()  # [room, N], row i holds i
        return Mapped(own, [own, own.clone()], handle="pad")

    def try_make(tp, routed, shared, room):
        rooms.append(room)
        parts = (mapped(routed, room), mapped(shared, room), mapped(shared, room))
        return Exchange(*parts, stream="side")

    monkeypatch.setattr(peer_copy.shelf, "place", lambda _device: PLACE[0])
    PLACE[0] = (7, 0)
    monkeypatch.setattr(peer_copy, "_try_make", try_make)
    monkeypatch.setattr(peer_copy, "_agree", lambda tp, made: made)
    monkeypatch.setattr(peer_copy, "_exchanges", {})
    return rooms


def ask(tokens, tp=None, latent=3, hidden=5):
    tp = tp or TensorParallel(rank=0, size=2, group=GROUP, device=torch.device("cuda"))
    return exchange_for(tp, torch.empty(tokens, latent), torch.empty(tokens, hidden))


GROUP = object()
PLACE = [(7, 0)]  # (stream, capture) of the next call


def test_any_number_of_tokens_shares_the_buffers_of_a_power_of_two(made):
    for tokens in (2048, 2050, 4096, 4097, 8192, 4127, 2048, 7000):
        got = ask(tokens)
        assert (got.routed.own.shape, got.shared.own.shape, got.out.own.shape) == (
            (tokens, 3),
            (tokens, 5),
            (tokens, 5),
        )
        assert got.out.own[-1].tolist() == [tokens - 1] * 5
        assert [peer.shape for peer in got.shared.peers] == [(tokens, 5)] * 2
        assert got.stream == "side"
    assert made == [2048, 4096, 8192]


def test_rows_are_views_of_the_mapped_memory(made):
    assert ask(3000).out.own.data_ptr() == ask(4096).out.own.data_ptr()


def test_other_widths_have_buffers_of_their_own(made):
    ask(4096), ask(4096, latent=4), ask(4096, hidden=6)
    assert made == [4096] * 3


def test_what_could_not_be_mapped_is_not_tried_again(made, monkeypatch):
    monkeypatch.setattr(peer_copy, "_agree", lambda tp, made: None)
    assert ask(4096) is None
    assert ask(4096) is None
    assert made == [4096]


def test_no_buffers_without_gpus_or_a_group(made):
    assert ask(4096, TensorParallel(rank=0, size=2, group=GROUP)) is None
    assert ask(4096, TensorParallel(rank=0, size=2, device=torch.device("cuda"))) is None
    assert made == []


def test_steps_that_may_run_at_once_share_no_buffers(made):
    here = ask(4096).out.own.data_ptr()
    PLACE[0] = (8, 0)
    assert ask(4096).out.own.data_ptr() != here
    PLACE[0] = (7, 1)  # a capture on the first stream takes its buffers over
    assert ask(4096).out.own.data_ptr() == here
    PLACE[0] = (7, 2)  # and the next capture there finds none: nothing can be mapped
    assert ask(4096) is None
    PLACE[0] = (7, 0)
    assert ask(4096).out.own.data_ptr() != here
    assert made == [4096] * 3
