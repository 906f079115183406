"""Run with TRITON_INTERPRET=1: a launch inside another one's, and a launch after one that was cut off; prints JSON.

Two branches of a graph that run at once interleave their programs; the interpreter runs one program after another, so
a whole launch between two programs of another stands for that.
"""

import json
from contextlib import contextmanager

import torch
from triton.runtime import interpreter

from latent_moe.fused_kernel import norm_project_accumulate
from latent_moe.fused_kernel.tile_plan import TilePlan

PLANS = {
    "swapped": TilePlan(16, 16, 16, 3, 4, 2, "swapped"),
    "early": TilePlan(16, 16, 32, 3, 4, 1, "early"),
}


class CutOff(Exception):
    """What ends a launch before its last program."""


@contextmanager
def before_program(number, act):
    """Call `act()` once, before the program of this number."""
    builder = interpreter.interpreter_builder
    original, calls = builder.set_grid_idx, []

    def counted(*index):
        calls.append(index)
        if len(calls) == number + 1:
            size = builder.grid_dim
            act()
            builder.set_grid_dim(*size)
        original(*index)

    builder.set_grid_idx = counted
    try:
        yield
    finally:
        builder.set_grid_idx = original


def problem(seed):
    """x [T, K], weight [N, K], out [T, N] and the float64 answer."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(5, 96, generator=generator).bfloat16()
    weight = (torch.randn(32, 96, generator=generator) / 10).bfloat16()
    out = torch.randn(5, 32, generator=generator).bfloat16()
    wide = x.double()
    hidden = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
    return x, weight, out, out.double() + hidden @ weight.double().t()


def run(case, plan):
    x, weight, out, _ = case
    norm_project_accumulate(x, None, 1e-5, weight, out, plan)


def error(case):
    return float((case[2].double() - case[3]).norm() / case[3].norm())


def nested(plan, number):
    """Errors of a launch and of another one issued before its program of this number."""
    outer, inner = problem(1), problem(2)
    with before_program(number, lambda: run(inner, plan)):
        run(outer, plan)
    return [error(outer), error(inner)]


def after_a_cut(plan, number):
    """The error of a launch after one that ended before its program of this number."""

    def cut():
        raise CutOff

    try:
        with before_program(number, cut):
            run(problem(3), plan)
    except Exception:
        later = problem(4)
        run(later, plan)
        return error(later)
    raise AssertionError("the launch was not cut off")


if __name__ == "__main__":
    answer = {
        name: {
            "nested": [nested(plan, number) for number in range(1, 6)],
            "cut": [after_a_cut(plan, number) for number in range(1, 6)],
        }
        for name, plan in PLANS.items()
    }
    print(json.dumps(answer))
