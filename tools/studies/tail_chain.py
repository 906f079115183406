"""What a decode tail's compute adds to its two neighbours, on one GPU: the rows of profiles/h200_chain.

python -m tools.studies.tail_chain OUT

Shapes are those of a rank at TP = 8 of Kimi-K3. Two stand-ins for the all-reduces, each one kernel that adds two tensors,
run alone and with a tail between, a layer after another over 96 weight sets, as one graph. Samples of all rows are
taken in turn. Stand-ins let the next kernel start early where the tail between can. Also: tails alone, the host's time
of an eager call, large T, and two branches of one graph that run at once.

T tokens, N columns of a rank, K latent, H hidden.
"""

import csv
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from statistics import median

import torch
import triton
import triton.language as tl

from latent_moe.fused_kernel import norm_project_accumulate, shelf
from latent_moe.fused_kernel.peer_launch import (
    Mailbox,
    launch_whole_tail,
    one_launch_plan,
    one_launch_sizes,
    one_launch_workspace,
)
from latent_moe.fused_kernel.tile_plan import TilePlan, bucket
from latent_moe.lab.microbench.timing import summarise
from latent_moe.tails import accumulate_into

N, K, H = 896, 3584, 7168
SETS, SAMPLES, EPS = 96, 30, 1e-5
DECODE, PREFILL = (1, 2, 4, 8, 16, 32, 64, 128), (256, 512, 1024, 2048, 16384)
# Beside the plan by rule: the forms that might pay where the library's product is strong.
LARGE_PLANS = {
    256: (TilePlan(64, 64, 64, 2, 4, 8, "gram"), TilePlan(128, 64, 64, 2, 4, 6, "gram"), TilePlan(64, 128, 64, 2, 4, 6, "gram")),
    512: (TilePlan(64, 64, 64, 1, 4, 8, "gram"), TilePlan(128, 64, 64, 2, 4, 6, "gram"), TilePlan(64, 128, 64, 2, 4, 6, "gram")),
}  # fmt: skip
LONG_PLANS = (TilePlan(128, 64, 64, 1, 4, 5, "gram"), TilePlan(128, 128, 64, 1, 8, 4, "gram"), TilePlan(128, 128, 64, 1, 8, 3, "plain"))  # fmt: skip


@triton.jit
def stand_in(a, b, out, count, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """out = a + b: reads and writes what an all-reduce's end would."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.load(a + at, mask=at < count).to(tl.float32) + tl.load(b + at, mask=at < count).to(tl.float32)
    tl.store(out + at, total.to(tl.bfloat16), mask=at < count)


def _add(a, b, out, early: bool) -> None:
    grid = (triton.cdiv(out.numel(), 1024),)
    options = {"num_warps": 4} | ({"launch_pdl": True} if early else {})
    stand_in[grid](a, b, out, out.numel(), BLOCK=1024, PDL=early, **options)


@cache
def _gain() -> torch.Tensor:
    return torch.ones(K, device="cuda", dtype=torch.bfloat16)


def normed(x):
    """RMSNorm of x [T, K] -> [T, K], as the library has it."""
    return torch.nn.functional.rms_norm(x, (K,), _gain(), EPS)


def column_parallel(x, weight, own) -> None:
    """The change's compute."""
    accumulate_into(own, normed(x), weight)


def fused(x, weight, own, plan: TilePlan | None = None) -> None:
    """The fused tail's compute."""
    norm_project_accumulate(x, None, EPS, weight, own, plan)


def whole_tail_of_one(x, weight, out) -> None:
    """one_launch with no peers: what it keeps is kept as in the tail."""
    plan, capacity, n = one_launch_plan(x.device, x.shape[0], N, K), bucket(x.shape[0]), N
    words, programs = one_launch_sizes(plan, capacity, 1, n, K)
    place = shelf.place(x.device)
    box = shelf.take((place, "box", plan, capacity), lambda: mailboxes(1, words, programs, x.device)[0])
    kept = shelf.take(
        (place, "kept", plan, capacity), lambda: one_launch_workspace(plan, capacity, n, x.device)
    )
    launch_whole_tail(x, out, weight, EPS, 0, 1, box, kept, plan, capacity)
    shelf.put_back((place, "box", plan, capacity), box)
    shelf.put_back((place, "kept", plan, capacity), kept)


def mailboxes(tp: int, words: int, programs: int, device) -> list[Mailbox]:
    """The mailboxes of `tp` ranks that share one device."""
    memory = [torch.zeros(words, dtype=torch.int64, device=device) for _ in range(tp)]
    # Alone, a rank looks nobody's mailbox up; and a graph under capture takes no addresses from the host.
    addresses = [one.data_ptr() for one in memory]
    table = torch.tensor(addresses, device=device) if tp > 1 else torch.zeros_like(memory[0][:1])
    zeros = lambda count: torch.zeros(count, dtype=torch.int32, device=device)  # noqa: E731
    return [Mailbox(table, zeros(programs), zeros(1), memory) for _ in range(tp)]


def captured(work: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """`work` as a graph, run once before."""
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph


def in_turn(
    replays: dict[str, Callable[[], None]], calls: int, samples: int = SAMPLES
) -> dict[str, list[float]]:
    """us a call of each, a number a replay; the replays take turns."""
    times: dict[str, list[float]] = {name: [] for name in replays}
    for number in range(samples + 2):
        for name, replay in replays.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            replay()
            end.record()
            end.synchronize()
            if number >= 2:
                times[name].append(begin.elapsed_time(end) * 1e3 / calls)
    return times


def draw(*shape: int, scale: float = 1.0) -> torch.Tensor:
    """Random bf16 on the GPU."""
    return (torch.randn(*shape, device="cuda") * scale).bfloat16()


def _error(x, weight, before, after) -> float:
    wide = x.double()
    answer = (
        before.double() + wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS) @ weight.double().t()
    )
    return float((after.double() - answer).norm() / answer.norm())


def checked(tail, x, weight) -> tuple[float, bool]:
    """(error against float64, whether three calls give the same bits)."""
    whole = draw(x.shape[0], H)
    before, bits = whole[:, N : 2 * N].clone(), []
    for _ in range(3):
        whole[:, N : 2 * N] = before
        tail(x, weight, whole[:, N : 2 * N])
        bits.append(whole[:, N : 2 * N].clone())
    return _error(x, weight, before, bits[0]), all(torch.equal(bits[0], other) for other in bits)


def chain(tokens: int, weights: list[torch.Tensor]) -> list[dict]:
    """Rows of one T: the stand-ins alone (without and with early starts), with each tail between, and tails alone."""
    latents = [[draw(tokens, K) for _ in weights] for _ in range(3)]
    hiddens = [[draw(tokens, H) for _ in weights] for _ in range(3)]
    own = [shared[:, N : 2 * N] for shared in hiddens[0]]

    def layers(tail, early: bool, stand_ins: bool = True) -> None:
        for index, weight in enumerate(weights):
            if stand_ins:
                _add(latents[0][index], latents[1][index], latents[2][index], early)
            if tail is not None:
                tail(latents[2][index], weight, own[index])
            if stand_ins:
                _add(hiddens[0][index], hiddens[1][index], hiddens[2][index], early)

    cases = {
        "stand_ins": (None, False),
        "stand_ins early": (None, True),
        "column_parallel": (column_parallel, False),
    }
    cases["fused"] = (fused, True)
    graphs = {name: captured(lambda c=case: layers(*c)).replay for name, case in cases.items()}
    for name, tail in (("column_parallel", column_parallel), ("fused", fused)):
        graphs[f"{name} alone"] = captured(lambda t=tail: layers(t, False, False)).replay
    times = in_turn(graphs, len(weights))
    base = median(times["stand_ins"])
    rows = []
    for name, taken in times.items():
        timing = summarise(taken)
        tail = {"column_parallel": column_parallel, "fused": fused}.get(name)
        error, same = checked(tail, latents[2][1], weights[1]) if tail else ("", "")
        adds = round(timing.median_us - base, 2) if name in ("column_parallel", "fused") else ""
        rows.append({"tail": name, "tokens": tokens, "median_us": round(timing.median_us, 2), "p10_us": round(timing.p10_us, 2), "p90_us": round(timing.p90_us, 2), "adds_us": adds, "max_rel_err": error, "same_bits": same})  # fmt: skip
    return rows


def large(tokens: int) -> list[dict]:
    """Rows of one large T: the change's compute, its two parts, and plans of the fused kernel; graph, no neighbours."""
    count = max(4, min(SETS, 768 * 2**20 // (2 * (N * K + tokens * (K + H)))))
    weights = [draw(N, K, scale=K**-0.5) for _ in range(count)]
    x, shared = [draw(tokens, K) for _ in weights], [draw(tokens, H) for _ in weights]
    own = [one[:, N : 2 * N] for one in shared]
    work = {
        "column_parallel": column_parallel,
        "norm": lambda x, _w, _o: normed(x),
        "addmm_": lambda x, w, o: accumulate_into(o, x, w),
        "fused": fused,
    }
    for plan in LARGE_PLANS.get(tokens, LONG_PLANS):
        name = f"fused {plan.form} {plan.block_t}x{plan.block_n}x{plan.block_k} split {plan.split}, {plan.warps} warps"
        work[name] = lambda x, w, o, p=plan: fused(x, w, o, p)
    checks = {
        name: checked(tail, x[1], weights[1]) for name, tail in work.items() if name not in ("norm", "addmm_")
    }
    graphs = {name: captured(lambda t=tail: [t(*one) for one in zip(x, weights, own, strict=True)] and None).replay for name, tail in work.items()}  # fmt: skip
    times = {name: median(taken) for name, taken in in_turn(graphs, count, 12).items()}
    return [
        {"tail": name, "tokens": tokens, "median_us": round(us, 2), "of_the_change": round(us / times["column_parallel"], 3), "max_rel_err": checks.get(name, ("", ""))[0], "same_bits": checks.get(name, ("", ""))[1]}
        for name, us in times.items()
    ]  # fmt: skip


def host() -> list[dict]:
    """us of the host's time an eager call, the slice of the shared partial included."""
    rows = []
    for tokens in (1, 8, 16):
        x, shared, weight = draw(tokens, K), draw(tokens, H), draw(N, K, scale=K**-0.5)
        for name, tail in (("column_parallel", column_parallel), ("fused", fused)):
            taken = []
            for number in range(42):
                begin = time.perf_counter()
                for _ in range(200):
                    tail(x, weight, shared[:, N : 2 * N])
                if number >= 30:  # a processor that idled takes its time
                    taken.append((time.perf_counter() - begin) / 200 * 1e6)
                torch.cuda.synchronize()
            rows.append({"tail": name, "tokens": tokens, "host_us": round(median(taken), 1)})
    return rows


def branches(name: str, tail, tokens: int, replays: int = 300) -> dict:
    """Wrong answers of two branches of one graph that run at once, warmed up outside the capture."""
    weights, x = [draw(N, K, scale=K**-0.5) for _ in range(2)], [draw(tokens, K) for _ in range(2)]
    out = [torch.zeros(tokens, N, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
    for j in range(2):
        tail(x[j], weights[j], out[j])
    torch.cuda.synchronize()
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph):
        main = torch.cuda.current_stream()
        side.wait_stream(main)
        for j, stream in enumerate((main, side)):
            with torch.cuda.stream(stream):
                for _ in range(30):
                    out[j].zero_()
                    tail(x[j], weights[j], out[j])
        main.wait_stream(side)
    wrong = [0, 0]
    for _ in range(replays):
        graph.replay()
        torch.cuda.synchronize()
        for j in range(2):
            wrong[j] += not _error(x[j], weights[j], torch.zeros_like(out[j]), out[j]) < 1e-2
    return {"tail": name, "tokens": tokens, "replays": replays, "wrong_a": wrong[0], "wrong_b": wrong[1]}


def write(path: Path, rows: list[dict]) -> None:
    """The rows as CSV, and on the screen."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(path.read_text(), flush=True)


def main(out: Path) -> None:
    """Write chain.csv, host.csv, branches.csv and large.csv into `out`."""
    torch.manual_seed(1)
    weights = [draw(N, K, scale=K**-0.5) for _ in range(SETS)]
    write(out / "host.csv", host())
    write(out / "chain.csv", [row for tokens in DECODE for row in chain(tokens, weights)])
    tails = (("fused", fused), ("one_launch, one rank", whole_tail_of_one))
    sizes = (1, 2, 8, 16, 64, 128)
    write(out / "branches.csv", [branches(name, tail, tokens) for name, tail in tails for tokens in sizes])
    write(out / "large.csv", [row for tokens in PREFILL for row in large(tokens)])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
