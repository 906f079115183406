"""A command for the ranks of a job: every tail once, and what each rank got; importable, as launch() asks.

`python -m job_command` under torchrun or with srun's variables; rank 0 prints one JSON object.
"""

import hashlib
import json
import os
import sys
import time

import torch

from latent_moe.config import TINY
from latent_moe.errors import InputError
from latent_moe.lab.job import place_of, take_part
from latent_moe.layer import LatentMoE
from latent_moe.parallel import launch
from latent_moe.runner import ROCmLatentMoERunner
from latent_moe.tail_variants.registry import NAMES
from latent_moe.weights import SeededWeights


def every_tail(tp) -> dict[str, tuple[str, list[tuple[str, int]]]]:
    """Tail -> (digest of out [T, H], the collectives as issued)."""
    arguments = {"tail": "replicated"}
    layer = LatentMoE(TINY, tp, SeededWeights(TINY, 5), runner_cls=ROCmLatentMoERunner, runner_args=arguments)
    x = torch.randn(16, TINY.hidden_size, generator=torch.Generator().manual_seed(5))  # [T, H]
    routed, shared = layer.partials(x)
    answers = {}
    for name in NAMES:
        tp.issued.clear()
        out = layer.runner.finish(routed.clone(), shared.clone(), tail=name)
        digest = hashlib.sha256(out.numpy().tobytes()).hexdigest()
        answers[name] = (digest, [(one.kind, one.bytes) for one in tp.issued])
    return answers


def misbehave(tp, how: str) -> None:
    """The last rank does something wrong while the others wait for it."""
    if tp.rank == tp.size - 1:
        if how == "raise":
            raise ValueError("boom")
        if how == "input":
            raise InputError("the batch is empty")
        if how == "sleep":
            time.sleep(600)
    tp.all_reduce(torch.ones(1))


def twice(size: int) -> int:
    """Two launches in one command: a job serves as many as a command asks for."""
    first, again = (launch(every_tail, size, timeout_s=60) for _ in range(2))
    print(json.dumps({"ranks": first, "same": first == again}), flush=True)
    return 0


def main(how: str) -> int:
    place = place_of()
    assert place is not None, "nothing says that a job has started this process"
    if how == "twice":
        return take_part(place, lambda: twice(place.size))
    if how == "other size":
        return take_part(place, lambda: len(launch(every_tail, place.size + 1)))
    return take_part(place, lambda: len(launch(misbehave, place.size, how, timeout_s=5)))


if __name__ == "__main__":
    try:
        code = main(sys.argv[1])
    except InputError as error:
        print(f"refused: {error}", file=sys.stderr, flush=True)
        code = 2
    sys.stdout.flush()
    os._exit(code)
