"""Runners: the seam, each refusal with its reason and the replicated result, expert parallelism."""

import core_ranks
import pytest
import torch
from core_ranks import SEED, x_for

from latent_moe.config import TINY
from latent_moe.errors import InputError
from latent_moe.lab.cost.auto_tail import choose
from latent_moe.layer import LatentMoE
from latent_moe.parallel import TensorParallel, launch
from latent_moe.runner import MoERunner, ROCmLatentMoERunner, refusal
from latent_moe.tail_variants.registry import TAILS
from latent_moe.verify import reference, relative_error
from latent_moe.weights import SeededWeights

# The layer, runner arguments, and how the reason begins.
REFUSED = {
    "not_latent": (TINY.replace(latent_size=None), {}, "the layer is not latent"),
    "no_shared_experts": (TINY.replace(shared_width=0), {}, "no shared experts"),
    "hidden_not_divisible": (TINY.replace(hidden_size=66), {}, "hidden size 66 is not divisible by tp 4"),
    "sequence_parallel": (TINY.replace(sequence_parallel=True), {}, "sequence-parallel layer"),
    "routed_scaling": (
        TINY.replace(routed_scaling_factor=2.5, scale_routed_output=True),
        {},
        "routed scaling factor 2.5 is applied at the runner",
    ),
    "output_is_reduced": (TINY, {"output_is_reduced": True}, "the routed output is already reduced"),
}


@pytest.fixture(scope="module")
def refused():
    cases = {
        name: (config, ROCmLatentMoERunner, arguments) for name, (config, arguments, _) in REFUSED.items()
    }
    baseline = {
        f"{name} baseline": (config, MoERunner, arguments) for name, (config, arguments, _) in REFUSED.items()
    }
    return launch(core_ranks.layers, 4, cases | baseline)


@pytest.mark.parametrize("code", REFUSED)
def test_refusal_gives_the_replicated_result_and_the_reason(refused, code):
    config, _, reason = REFUSED[code]
    expected = reference(config, SeededWeights(config, SEED), x_for(config))
    for number, rank in enumerate(refused):
        last = rank[code]["last"]
        assert (last.tail, last.asked, last.eligible) == ("replicated", "column_parallel", False)
        assert last.refusal.code == code
        assert last.reason.startswith(reason)
        assert torch.equal(rank[code]["out"], rank[f"{code} baseline"]["out"])
        assert rank[code]["issued"] == rank[f"{code} baseline"]["issued"]
        mine = expected.chunk(4)[number] if config.sequence_parallel else expected
        assert relative_error(rank[code]["out"], mine) <= 1e-5


def test_one_rank_has_nobody_to_share_with():
    weights = SeededWeights(TINY, SEED)
    layer = LatentMoE(TINY, TensorParallel.single(), weights, runner_cls=ROCmLatentMoERunner)
    assert relative_error(layer(x_for()), reference(TINY, weights, x_for())) <= 1e-5
    assert layer.runner.last.refusal.code == "tp_1"


def test_no_up_projection():
    found = refusal(TAILS["column_parallel"], TINY, 4, has_up_projection=False)
    assert found.code == "no_up_projection"
    layer = LatentMoE(TINY, TensorParallel.single(), SeededWeights(TINY, 0), runner_cls=ROCmLatentMoERunner)
    layer.runner.routed_output_transform = None
    assert layer.runner.decide(4).refusal.code == "no_up_projection"


@pytest.mark.parametrize("tail", [name for name in TAILS if name != "replicated"])
@pytest.mark.parametrize("code", REFUSED)
def test_refusals_hold_for_every_sharded_tail(code, tail):
    config, arguments, _ = REFUSED[code]
    found = refusal(TAILS[tail], config, 4, tokens=16, **arguments)
    if code == "hidden_not_divisible" and TAILS[tail].rows == "all":
        assert found is None or found.code == "tail_cannot_run"
    else:
        assert found.code == code
    assert refusal(TAILS["replicated"], config, 4, **arguments) is None


def test_expert_parallel_group_of_eight_still_shards():
    config = TINY.replace(moe_tp_size=1)
    cases = {"change": (config, ROCmLatentMoERunner, {}), "baseline": (config, None, None)}
    expected = reference(config, SeededWeights(config, SEED), x_for(config))
    for rank in launch(core_ranks.layers, 8, cases):
        assert rank["change"]["last"].tail == "column_parallel"
        assert rank["change"]["expert_shapes"][0][0] == 1  # one whole expert a rank
        assert rank["change"]["rows"] == 8  # of 64
        assert rank["change"]["issued"] == rank["baseline"]["issued"]
        assert relative_error(rank["change"]["out"], expected) <= 1e-5


def test_seam_default_is_the_baseline_and_subclasses_pass():
    class Counting(ROCmLatentMoERunner):
        calls = 0

        def forward(self, x, router_logits):
            Counting.calls += 1
            return super().forward(x, router_logits)

    single, weights = TensorParallel.single(), SeededWeights(TINY, SEED)
    assert type(LatentMoE(TINY, single, weights).runner) is MoERunner
    arguments = {"tail": "auto", "accumulate": "add", "choose": choose}
    layer = LatentMoE(TINY, single, weights, runner_cls=Counting, runner_args=arguments)
    assert torch.equal(layer(x_for()), LatentMoE(TINY, single, weights)(x_for()))
    assert (Counting.calls, layer.runner.tail, layer.runner.accumulate) == (1, "auto", "add")


def test_rows_that_a_rank_keeps():
    rows = ROCmLatentMoERunner.rows_needed
    assert rows(TINY, 4) == "own"
    assert rows(TINY, 1) == "all"
    assert (
        rows(TINY, 4, tail="replicated")
        == rows(TINY, 4, tail="auto")
        == MoERunner.rows_needed(TINY, 4)
        == "all"
    )


def test_every_tail_by_name_and_a_gathered_whole():
    for outs in launch(core_ranks.every_tail, 4, TINY):
        for name, out in outs.items():
            assert relative_error(out, outs["replicated"]) <= 1e-5, name


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tail": "magic"}, "unknown tail 'magic'"),
        ({"tail": "auto"}, "tail 'auto' needs `choose`"),
        ({"accumulate": "x"}, "unknown accumulate 'x'"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(InputError, match=message):
        LatentMoE(
            TINY,
            TensorParallel.single(),
            SeededWeights(TINY, 0),
            runner_cls=ROCmLatentMoERunner,
            runner_args=arguments,
        )
