"""Each tail as a sum of terms; best tail and crossovers."""

import pytest

from latent_moe.config import KIMI_K3, TINY
from latent_moe.errors import InputError
from latent_moe.lab.cost import hardware, tail

T = (1, 8, 64, 512, 4096, 16384)


def test_the_terms_add_up_and_are_named(mi355x):
    cost = tail.tail_cost("column_parallel", 64, 8, mi355x)
    assert [term.name for term in cost.terms] == [
        "all_reduce(latent)",
        "norm",
        "gemm",
        "epilogue read",
        "all_reduce(hidden)",
    ]
    assert cost.total_us == pytest.approx(sum(term.us for term in cost.terms))
    assert cost.kind == "modelled"


@pytest.mark.parametrize("tokens", T)
def test_sharding_saves_at_every_t(mi355x, tokens):
    before, after = (tail.tail_cost(name, tokens, 8, mi355x) for name in ("replicated", "column_parallel"))
    assert after.total_us < before.total_us
    # The collectives are the same two.
    for name in ("all_reduce(latent)", "all_reduce(hidden)"):
        assert after.us(name) == before.us(name)


@pytest.mark.parametrize("tokens", T)
def test_overlap_takes_the_longer_and_hides_the_shorter(mi355x, tokens):
    plain, over = (tail.tail_cost(name, tokens, 8, mi355x) for name in ("replicated", "overlap"))
    pair = plain.us("gemm"), plain.us("all_reduce(hidden)")
    assert plain.total_us - over.total_us == pytest.approx(min(pair))
    assert sum(term.hidden_us for term in over.terms) == pytest.approx(min(pair))


def test_token_parallel_moves_half_the_latent_bytes_and_shrinks_norm(mi355x):
    column, token = (tail.tail_cost(name, 16384, 8, mi355x) for name in ("column_parallel", "token_parallel"))
    assert token.us("norm") < column.us("norm") / 4
    assert token.us("reduce_scatter(latent)") == pytest.approx(column.us("all_reduce(latent)") / 2)


def test_pipelining_hides_something_and_costs_launches():
    slow_links = hardware.get("mi355x").replace(link_gb_per_s=20.0)
    column, piped = (tail.tail_cost(name, 16384, 8, slow_links) for name in ("column_parallel", "pipelined"))
    assert any(term.hidden_us > 0 for term in piped.terms)
    assert piped.total_us < column.total_us
    small = [tail.tail_cost(name, 8, 8, slow_links).total_us for name in ("column_parallel", "pipelined")]
    assert small[1] > small[0]


def test_joint_saves_a_collective_and_pays_a_copy_and_the_whole_weight():
    slow_start = hardware.get("mi355x").replace(collective_latency_us=40.0)
    for tokens in (1, 16):
        before, one = (tail.tail_cost(name, tokens, 8, slow_start) for name in ("replicated", "joint"))
        assert [term.name for term in one.terms if "all_" in term.name] == ["all_reduce(both)"]
        assert one.us("gemm") == before.us("gemm")
        assert before.total_us - one.total_us > 0.8 * 40
    column, one = (tail.tail_cost(name, 16384, 8, slow_start) for name in ("column_parallel", "joint"))
    assert one.total_us > column.total_us


def test_row_parallel_shrinks_norm_and_gemm_and_moves_the_hidden_once_more(mi355x):
    before, rows = (tail.tail_cost(name, 16384, 8, mi355x) for name in ("replicated", "row_parallel"))
    assert rows.us("norm") < before.us("norm") / 4
    assert rows.us("gemm") < before.us("gemm") / 4
    assert rows.us("all_reduce(hidden)") == before.us("all_reduce(hidden)")
    assert rows.us("all_gather(hidden)") > 0


def test_on_one_rank_there_are_no_collectives(mi355x):
    cost = tail.tail_cost("replicated", 64, 1, mi355x)
    assert cost.us("all_reduce(latent)") == cost.us("all_reduce(hidden)") == 0


def test_all_reduce_takes_the_cheaper_algorithm(mi355x):
    small, large = 1e3, 1e9
    assert tail.all_reduce_us(small, 8, mi355x) < 2 * mi355x.collective_latency_us
    rate = 0.7 * 7 * 76.8e3
    assert tail.all_reduce_us(large, 8, mi355x) == pytest.approx(2 * (8 + 7 / 8 * large / rate))


def test_point_to_point_links_count_by_peer_and_a_switch_does_not(mi355x):
    assert mi355x.link_bytes_per_us(2) * 7 == pytest.approx(mi355x.link_bytes_per_us(8))
    h200 = hardware.get("h200")
    assert h200.link_bytes_per_us(2) == h200.link_bytes_per_us(8)


def test_best_tail_is_the_cheapest_and_crossovers_agree(mi355x):
    found = tail.crossovers(8, mi355x)
    assert found[0][0] == 1
    for (start, name), (end, _) in zip(found, [*found[1:], (32769, "")], strict=True):
        assert tail.best_tail(start, 8, mi355x).tail == name
        assert tail.best_tail(end - 1, 8, mi355x).tail == name
    everything = [
        tail.tail_cost(name, 512, 8, mi355x).total_us for name in tail.TAIL_NAMES if name != "fused"
    ]
    assert tail.best_tail(512, 8, mi355x).total_us == min(everything)


def test_one_rank_has_nothing_to_shard_and_fused_is_judged_where_it_was_seen_to_lead(mi355x):
    assert {tail.best_tail(tokens, 1, mi355x).tail for tokens in (1, 64, 16384)} == {"replicated"}
    assert "fused" in tail.judged(128, 8)
    assert "fused" not in tail.judged(129, 8)


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (("nonsense", 1, 8), "unknown tail"),
        (("replicated", 0, 8), "at least 1"),
        (("replicated", 1, 0), "not a positive number of ranks"),
        (("replicated", 1, 3), "does not divide the hidden size 7168"),
    ],
)
def test_questions_no_tail_can_answer(mi355x, arguments, fault):
    with pytest.raises(InputError, match=fault):
        tail.tail_cost(*arguments, mi355x)


def test_a_layer_that_is_not_latent_has_no_tail(mi355x):
    with pytest.raises(InputError, match="not latent"):
        tail.tail_cost("replicated", 1, 8, mi355x, KIMI_K3.replace(latent_size=None))
    assert tail.tail_cost("replicated", 1, 2, mi355x, TINY).total_us > 0


def test_measured_best_reads_a_recording():
    rows = [
        {"tail": name, "tokens": tokens, "tp": 8, "mode": mode, "median_us": us}
        for name, tokens, mode, us in [
            ("fused", 1, "graph", 8),
            ("fused", 1024, "graph", 200),
            ("column_parallel", 1, "graph", 13),
            ("column_parallel", 1024, "graph", 20),
            ("all_reduces", 1, "graph", 1),
            ("replicated", 1, "eager", 2),
        ]
    ]
    assert tail.measured_best(rows, 1, "graph") == "fused"
    assert tail.measured_best(rows, 700, "graph") == "column_parallel"
    assert tail.measured_best(rows, 1, "eager") == "replicated"
    with pytest.raises(InputError, match="no tail"):
        tail.measured_best([], 8)


def test_the_crossover_map_is_best_tail_everywhere(mi355x):
    found = tail.crossover_map((8, 4096), (2, 8), mi355x)
    assert {(tp, tokens): name for tp, row in found.items() for tokens, name in row.items()} == {
        (tp, tokens): tail.best_tail(tokens, tp, mi355x).tail for tp in (2, 8) for tokens in (8, 4096)
    }
