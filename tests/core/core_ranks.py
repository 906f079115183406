"""Functions that the core tests run on real ranks; importable, as launch() asks."""

import os
import signal
import time
from pathlib import Path

import torch

from latent_moe.config import TINY
from latent_moe.errors import InputError
from latent_moe.layer import LatentMoE, LatentMoELM
from latent_moe.runner import ROCmLatentMoERunner
from latent_moe.tail_variants.registry import TAILS
from latent_moe.tails import column_parallel, replicated
from latent_moe.verify.rank_checks import Spy
from latent_moe.weights import SeededWeights, load

SEED, TOKENS = 11, 16


def x_for(config=TINY, tokens=TOKENS):
    """The same inputs everywhere."""
    return torch.randn(tokens, config.hidden_size, generator=torch.Generator().manual_seed(SEED))


def collectives(tp):
    """Each collective's result, its async form, and the counts."""
    rows = 2 * tp.size
    x = torch.arange(rows * 3, dtype=torch.float32).reshape(rows, 3) + tp.rank
    summed = tp.all_reduce(x.clone())
    mine = tp.reduce_scatter(x.clone())
    back = tp.all_gather(mine)
    again, out = x.clone(), torch.empty_like(mine)
    tp.all_reduce(again, async_op=True).wait()
    tp.reduce_scatter(x.clone(), out=out, async_op=True).wait()
    gathered = torch.empty_like(x)
    tp.all_gather(mine, out=gathered, async_op=True).wait()
    equal = [torch.equal(a, b) for a, b in ((again, summed), (out, mine), (gathered, back), (back, summed))]
    return summed, mine, equal, [(one.kind, one.bytes) for one in tp.issued], os.environ.get("CORE_TEST")


def misbehave(tp, how, folder):
    """Rank 1 does something wrong while the others wait in a collective; each rank leaves its pid."""
    Path(folder, f"{tp.rank}.pid").write_text(str(os.getpid()))
    tp.all_reduce(torch.ones(1))  # everybody has written
    if tp.rank == 1:
        if how == "raise":
            raise ValueError("boom")
        if how == "input":
            raise InputError("the batch is empty")
        if how == "exit":
            os._exit(7)
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "sleep":
            time.sleep(600)
    tp.all_reduce(torch.ones(1))


def layers(tp, cases):
    """Outputs of one layer per case: name -> (config, runner class or None, runner arguments, rows of x)."""
    answers = {}
    for name, (config, cls, arguments) in cases.items():
        x = x_for(config)
        x = x[tp.columns(len(x))] if config.sequence_parallel else x
        layer = LatentMoE(config, tp, SeededWeights(config, SEED), runner_cls=cls, runner_args=arguments)
        tp.issued.clear()
        out = layer(x)
        transform = layer.runner.routed_output_transform
        rows = None if transform is None else transform.weight.shape[0]
        answers[name] = {
            "out": out,
            "last": layer.runner.last,
            "issued": [(one.kind, one.bytes) for one in tp.issued],
            "rows": rows,
            "expert_shapes": (tuple(layer.runner.experts.w13.shape), layer.runner.experts.first),
        }
    return answers


def tails(tp):
    """What the two tails give, issue and write, on random partial sums that differ by rank."""
    generator = torch.Generator().manual_seed(100 + tp.rank)
    routed, shared = (torch.randn(6, n, generator=generator) for n in (32, 64))
    weight = torch.randn(64, 32, generator=torch.Generator().manual_seed(1))
    answers = {}
    for name, function, w, options in (
        ("replicated", replicated, weight, {}),
        ("epilogue", column_parallel, weight[tp.columns(64)], {"accumulate": "epilogue"}),
        ("add", column_parallel, weight[tp.columns(64)], {"accumulate": "add"}),
    ):
        spy = Spy.on(tp)
        out = function(routed.clone(), shared.clone(), w, None, spy, **options)
        issued = [(one.kind, one.bytes) for one in spy.issued]
        answers[name] = {"out": out, "issued": issued, "before_last_reduce": spy.given[-1]}
    return {"routed": routed, "shared": shared, "weight": weight, "answers": answers}


def every_tail(tp, config):
    """One layer, every tail by name through the runner."""
    layer = LatentMoE(config, tp, SeededWeights(config, SEED), runner_cls=ROCmLatentMoERunner)
    wide = LatentMoE(
        config,
        tp,
        SeededWeights(config, SEED),
        runner_cls=ROCmLatentMoERunner,
        runner_args={"tail": "replicated"},
    )
    routed, shared = wide.partials(x_for(config))
    outs = {name: wide.runner.finish(routed.clone(), shared.clone(), tail=name) for name in TAILS}
    # A runner that holds its own rows only can still answer with the whole.
    outs["gathered"] = layer.runner.finish(routed.clone(), shared.clone(), tail="replicated")
    return outs


def logits(tp, folder, runner_cls):
    """A checkpoint's logits."""
    return LatentMoELM(load(folder), tp, runner_cls=runner_cls)(torch.arange(7))
