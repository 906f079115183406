"""Whole tails through peer memory with two ranks emulated on one GPU: right or not, and how long; no link is crossed.

python -m tools.studies.emulated_ranks OUT

Each rank is a stream with a graph of its own: a layer after another over 32 weight sets. Both share one memory and one
set of processors, so the times bound what the waiting and the kernels cost and say nothing of NVLink. Shapes are those
of a rank at TP = 8 of Kimi-K3 (N = 896, K = 3584), H = 2 N.

T tokens, N columns of a rank, K latent, H hidden.
"""

import os
import sys
from pathlib import Path
from statistics import median

import torch

from latent_moe.fused_kernel import norm_project_accumulate, peer_launch
from latent_moe.fused_kernel.peer_launch import (
    SUM_PROGRAMS,
    latent_words,
    launch_whole_tail,
    one_launch_plan,
    one_launch_sizes,
    one_launch_workspace,
    sum_hidden,
    sum_latent,
)
from latent_moe.fused_kernel.tile_plan import bucket
from tools.studies.tail_chain import EPS, K, N, draw, in_turn, mailboxes, write

# Two streams that share one of the usual eight channels to the GPU wait for each other: a rank's kernel that waits for
# the other's then waits in vain.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
TP, SETS, H = 2, 32, 2 * N
TOKENS = (1, 2, 4, 8, 16)
LONG = (32, 64, 127, 128)


class OneLaunch:
    """one_launch of both ranks."""

    name = "one_launch"

    def __init__(self, tokens: int):
        device = torch.device("cuda", 0)
        self.capacity = bucket(tokens)
        self.plan = one_launch_plan(device, tokens, N, K)
        words, programs = one_launch_sizes(self.plan, self.capacity, TP, N, K)
        self.boxes = [mailboxes(TP, words, programs, device)]
        self.kept = [one_launch_workspace(self.plan, self.capacity, N, device) for _ in range(TP)]

    def __call__(self, rank: int, routed, shared, weight) -> None:
        launch_whole_tail(
            routed,
            shared,
            weight,
            EPS,
            rank,
            TP,
            self.boxes[0][rank],
            self.kept[rank],
            self.plan,
            self.capacity,
        )


class EarlyWeights:
    """early_weights of both ranks."""

    name = "early_weights"

    def __init__(self, tokens: int):
        device = torch.device("cuda", 0)
        self.capacity = bucket(tokens)
        latent = 2 * TP * latent_words(self.capacity, K)
        self.boxes = [mailboxes(TP, words, SUM_PROGRAMS, device) for words in (latent, 2 * self.capacity * H)]

    def __call__(self, rank: int, routed, shared, weight) -> None:
        sum_latent(routed, rank, TP, self.boxes[0][rank], self.capacity)
        norm_project_accumulate(routed, None, EPS, weight, shared[:, rank * N : (rank + 1) * N])
        sum_hidden(shared, rank, TP, self.boxes[1][rank], self.capacity)


class Ranks:
    """The inputs of both ranks, and what runs on them."""

    def __init__(self, tokens: int):
        self.weights = [[draw(N, K, scale=K**-0.5) for _ in range(SETS)] for _ in range(TP)]
        self.pristine = [[(draw(tokens, K), draw(tokens, H)) for _ in range(SETS)] for _ in range(TP)]
        self.parts = [[(a.clone(), b.clone()) for a, b in rank] for rank in self.pristine]
        self.streams = [torch.cuda.Stream() for _ in range(TP)]

    def restore(self) -> None:
        for rank, old in zip(self.parts, self.pristine, strict=True):
            for (routed, shared), (first, second) in zip(rank, old, strict=True):
                routed.copy_(first)
                shared.copy_(second)
        torch.cuda.synchronize()

    def answer(self, index: int) -> torch.Tensor:
        """[T, H] in float64."""
        latent = sum(rank[index][0].double() for rank in self.pristine)
        hidden = latent * torch.rsqrt(latent.pow(2).mean(-1, keepdim=True) + EPS)
        own = [hidden @ rank[index].double().t() for rank in self.weights]
        return sum(rank[index][1].double() for rank in self.pristine) + torch.cat(own, 1)

    def run(self, tail, sets: int) -> None:
        for index in range(sets):
            for rank in range(TP):
                with torch.cuda.stream(self.streams[rank]):
                    tail(rank, *self.parts[rank][index], self.weights[rank][index])

    def load(self, tail) -> None:
        """Load every module with waits that end at once: one that loads while a peer's kernel waits never finishes."""
        limit, peer_launch.LIMIT_S = peer_launch.LIMIT_S, 16e-9
        self.run(tail, 1)
        torch.cuda.synchronize()
        peer_launch.LIMIT_S = limit
        for boxes in tail.boxes:
            for box in boxes:
                box.status.zero_()
                box.numbers.zero_()
                for memory in box.keep:
                    memory.zero_()

    def graphs(self, tail) -> list[torch.cuda.CUDAGraph]:
        made = []
        for rank, stream in enumerate(self.streams):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                for part, weight in zip(self.parts[rank], self.weights[rank], strict=True):
                    tail(rank, *part, weight)
            made.append(graph)
        return made

    def replay(self, graphs) -> None:
        main = torch.cuda.current_stream()
        for stream in self.streams:
            stream.wait_stream(main)
        for stream, graph in zip(self.streams, graphs, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
        for stream in self.streams:
            main.wait_stream(stream)

    def check(self, tail) -> tuple[float, bool]:
        """(largest error against float64 over ranks and 4 layers, whether ranks and two runs give the same bits)."""
        errors, bits = [], []
        for _ in range(2):
            self.restore()
            self.run(tail, 4)
            torch.cuda.synchronize()
            bits.append([self.parts[rank][index][1].clone() for index in range(4) for rank in range(TP)])
        for index in range(4):
            want = self.answer(index)
            errors += [
                float((out.double() - want).norm() / want.norm())
                for out in bits[0][TP * index : TP * index + TP]
            ]
        same = all(torch.equal(a, b) for a, b in zip(*bits, strict=True))
        return max(errors), same and all(torch.equal(bits[0][TP * i], bits[0][TP * i + 1]) for i in range(4))


def rows(tokens: int) -> list[dict]:
    """Both tails at one T."""
    ranks, found = Ranks(tokens), []
    # one_launch is early_weights above 16 tokens.
    for tail in (EarlyWeights(tokens), OneLaunch(tokens)) if tokens in TOKENS else (EarlyWeights(tokens),):
        ranks.load(tail)
        error, same = ranks.check(tail)
        graphs = ranks.graphs(tail)
        ranks.restore()
        taken = in_turn({tail.name: lambda g=graphs: ranks.replay(g)}, SETS, 15)[tail.name]
        late = [int(box.status.item()) - 1 for boxes in tail.boxes for box in boxes if box.status.item()]
        found.append({"tail": tail.name, "tokens": tokens, "max_rel_err": error, "same_bits": same, "median_us": round(median(taken), 2), "late_ranks": len(late)})  # fmt: skip
        print(found[-1], flush=True)
    return found


if __name__ == "__main__":
    torch.manual_seed(2)
    peer_launch.LIMIT_S = 2.0
    write(Path(sys.argv[1]) / "emulated.csv", [row for tokens in (*TOKENS, *LONG) for row in rows(tokens)])
