"""What the ranks run for test_extra_tails: every tail at many T, chunks and dtypes in one launch.

T tokens, H hidden, L latent, tp ranks.
"""

from functools import cache

import torch

from latent_moe.tail_variants.registry import TAILS
from latent_moe.tails import RMSNorm

H, L = 64, 32
TOKENS = (1, 3, 7, 16, 33)
CHUNKS = (1, 2, 3)
DTYPES = ("float32", "bfloat16")


def draw(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def weights(dtype):
    weight = (draw(H, L, seed=1) / L**0.5).to(dtype)
    norm = RMSNorm(L, 1e-5, dtype)
    norm.weight.data.copy_(1 + draw(L, seed=2) / 4)
    return weight, norm


def partials(tokens, rank, dtype):
    return draw(tokens, L, seed=100 + rank).to(dtype), draw(tokens, H, seed=200 + rank).to(dtype)


@cache
def reference(tokens, ranks, dtype, with_norm):
    """float64, from the partials of every rank rounded to dtype."""
    parts = [partials(tokens, rank, dtype) for rank in range(ranks)]
    weight, norm = weights(dtype)
    latent = sum(routed.double() for routed, _ in parts)
    if with_norm:
        scale = (latent.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()
        latent = latent / scale * norm.weight.double()
    return sum(shared.double() for _, shared in parts) + latent @ weight.double().t()


def variants():
    for name in ("replicated", "column_parallel", "overlap", "joint", "row_parallel"):
        yield name, {}
    for name in ("token_parallel", "pipelined"):
        yield name, {}
        for chunks in CHUNKS:
            yield name, {"chunks": chunks}
    yield "pipelined", {"chunks": 2, "accumulate": "add"}


def all_tails(tp):
    """[{tail, options, tokens, dtype, with_norm, out, issued}] of this rank."""
    found = []
    for dtype_name in DTYPES:
        dtype = getattr(torch, dtype_name)
        weight, norm = weights(dtype)
        own = weight[tp.columns(H)].contiguous()
        for tokens in TOKENS:
            for name, options in variants():
                for with_norm in (True, False) if tokens == 7 else (True,):
                    routed, shared = partials(tokens, tp.rank, dtype)
                    tp.issued.clear()
                    rows = weight if TAILS[name].rows == "all" else own
                    out = TAILS[name].function(
                        routed, shared, rows, norm if with_norm else None, tp, **options
                    )
                    found.append(
                        {
                            "tail": name,
                            "options": options,
                            "tokens": tokens,
                            "dtype": dtype_name,
                            "with_norm": with_norm,
                            "out": out.clone(),
                            "issued": [(one.kind, one.bytes) for one in tp.issued],
                        }
                    )
    return found
