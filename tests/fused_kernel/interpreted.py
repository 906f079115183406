"""Run with TRITON_INTERPRET=1: the fused kernel on a CPU against float64; prints one JSON object.

T tokens, N columns of a rank, K latent. A program of its own, since Triton reads the switch when it is imported.
"""

import json
import sys
from dataclasses import replace

import torch

from latent_moe.config import TINY
from latent_moe.fused_kernel import norm_project_accumulate, shelf
from latent_moe.fused_kernel.tile_plan import TilePlan, by_rule
from latent_moe.parallel import launch
from latent_moe.tail_variants.fused import fused
from latent_moe.tails import RMSNorm
from tools.studies.tune_fused import _plan_us

POISON = -777.0
EPS = 1e-5


def draw(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def error(x, ref):
    return ((x.double() - ref).norm() / ref.norm()).item()


def answer(x, gain, weight, before, eps=EPS):
    wide = x.double()
    if eps is not None:
        wide = wide / (wide.pow(2).mean(-1, keepdim=True) + eps).sqrt()
    if gain is not None:
        wide = wide * gain.double()
    return before.double() + wide @ weight.double().t()


def one_case(tokens, n, k, dtype, form, plan, seed):
    """Error on the columns that count; whether the columns around them kept the poison."""
    x = (3 * draw(tokens, k, seed=seed)).to(dtype)
    gain = (1 + draw(k, seed=seed + 1)).to(dtype) if form == "norm" else None
    eps = None if form == "no norm" else EPS
    weight = (draw(n, k, seed=seed + 2) / k**0.5).to(dtype)
    whole = torch.full((tokens, 3 * n), POISON, dtype=dtype)
    own = whole[:, n : 2 * n]
    own.copy_(draw(tokens, n, seed=seed + 3))
    before = own.clone()
    bits = []
    for _ in range(2):
        for partials, squares, _ in shelf._idle.values():
            partials.fill_(float("nan"))
            squares.fill_(float("nan"))
        own.copy_(before)
        norm_project_accumulate(x, gain, eps, weight, own, plan)
        bits.append(own.clone())
    around = torch.cat([whole[:, :n], whole[:, 2 * n :]])
    tickets = [work[2].abs().sum().item() for work in shelf._idle.values()]
    return {
        "rel_err": error(own, answer(x, gain, weight, before, eps)),
        "around": bool((around == POISON).all()),
        "same_bits": torch.equal(*bits),
        "tickets": sum(tickets),
    }


def cases():
    """By name: sizes that divide and that do not, one split and many, both dtypes, with and without the norm."""
    sizes = [(1, 16, 16), (3, 48, 112), (16, 112, 208), (17, 64, 448), (70, 208, 48)]
    for seed, (tokens, n, k) in enumerate(sizes):
        for dtype in (torch.bfloat16, torch.float16):
            for form in ("norm", "folded norm", "no norm"):
                for way in ("plain", "swapped", "gram"):
                    name = f"{tokens}x{n}x{k} {str(dtype)[6:]} {form} {way}"
                    plan = replace(by_rule(tokens, n, k), form=way)
                    yield name, (tokens, n, k, dtype, form, plan, 100 * seed)
                if form == "norm" or dtype == torch.float16:
                    continue
                for way, plan in early_plans(tokens, n, k).items():
                    yield f"{name} {way}", (tokens, n, k, dtype, form, plan, 100 * seed)
    # A gain that is not folded: the early forms give way to another kernel.
    yield "gain, early", (4, 48, 112, torch.bfloat16, "norm", TilePlan(4, 16, 112, 1, 4, 1, "early"), 5)
    # Splits that leave the last program part of K, or none of it.
    for split in (2, 3, 5):
        plan = TilePlan(16, 32, 32, split, 4, 2)
        yield f"split {split}", (5, 48, 144, torch.bfloat16, "norm", plan, 7 * split)


def early_plans(tokens, n, k):
    """Plans that hold their slice of the weight: one part and three, the last of which is short of K."""
    third = -(-k // 3)
    return {
        "rows": TilePlan(2, 8, k, 1, 4, 1, "rows"),
        "early": TilePlan(16, min(n, 32), k, 1, 4, 1, "early"),
        "early in three": TilePlan(
            min(tokens, 4) if tokens in (1, 2, 4) else 16, 16, third, 3, 4, 1, "early"
        ),
    }


def rank_part(tp, tokens):
    """The tail on real ranks: this rank's error against float64 over all ranks' partials."""
    config, dtype = TINY.replace(hidden_size=64, latent_size=48), torch.bfloat16
    parts = [
        (draw(tokens, 48, seed=rank).to(dtype), draw(tokens, 64, seed=50 + rank).to(dtype))
        for rank in range(tp.size)
    ]
    weight = (draw(64, 48, seed=99) / 48**0.5).to(dtype)
    norm = RMSNorm(48, config.norm_eps, dtype)
    norm.weight.data.copy_(1 + draw(48, seed=98) / 4)
    routed, shared = (part.clone() for part in parts[tp.rank])
    out = fused(routed, shared, weight[tp.columns(64)], norm, tp)
    latent = sum(part.double() for part, _ in parts)
    ref = answer(latent, norm.weight, weight, sum(part.double() for _, part in parts))
    return error(out, ref), [(one.kind, one.bytes) for one in tp.issued]


def tuner_part():
    """The tuner's own timing and check of one plan: a time where the kernel is right, None where it is not."""
    n, k, dtype = 32, 64, torch.bfloat16
    x = draw(4, k, seed=1).to(dtype)
    weights = [draw(n, k, seed=3).to(dtype) / 8]
    pristine = draw(4, 2 * n, seed=4).to(dtype)
    shared, plan = [pristine.clone()], TilePlan(16, 32, 32, 2, 4, 2)
    right = _plan_us(x, weights, shared, pristine, n, plan)
    # Weights that are not those the answer is made of: what a kernel that reads wrong rows would give.
    wrong = _plan_us(x, _Twisted(weights), shared, pristine, n, plan)
    return {"right_us": right, "wrong_us": wrong}


class _Twisted(list):
    """Gives the kernel one weight and the check another."""

    def __init__(self, items):
        super().__init__(items)
        self.reads = 0

    def __getitem__(self, index):
        self.reads += 1
        return super().__getitem__(index) * (-1 if self.reads == 1 else 1)


if __name__ == "__main__":
    torch.manual_seed(int(sys.argv[1]))
    found = {name: one_case(*arguments) for name, arguments in cases()}
    ranks = {str(tokens): launch(rank_part, 2, tokens) for tokens in (1, 5)}
    print(json.dumps({"cases": found, "ranks": ranks, "tuner": tuner_part()}))
