"""Run with TRITON_INTERPRET=1: the tails through peer memory on real ranks that share files; prints one JSON object.

T tokens, H hidden, L latent, tp ranks.
"""

import json
import sys

import torch

from latent_moe.errors import LatentMoEError
from latent_moe.fused_kernel import peer_launch
from latent_moe.parallel import launch
from latent_moe.tail_variants.mailbox import check_peers
from latent_moe.tail_variants.registry import TAILS
from latent_moe.tails import RMSNorm, fold_gain

H, L = 64, 96
NAMES = ("early_weights", "one_launch")


def draw(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def weights(dtype, folded):
    weight = (draw(H, L, seed=1) / L**0.5).to(dtype)
    norm = RMSNorm(L, 1e-5, dtype)
    norm.weight.data.copy_(1 + draw(L, seed=2) / 4)
    if folded:
        fold_gain(weight, norm)
    return weight, norm


def partials(tokens, rank, dtype, call):
    return draw(tokens, L, seed=100 * call + rank).to(dtype), draw(tokens, H, seed=999 * call + rank).to(
        dtype
    )


def reference(tokens, ranks, dtype, folded, call, with_norm):
    parts = [partials(tokens, rank, dtype, call) for rank in range(ranks)]
    weight, norm = weights(dtype, folded)
    latent = sum(routed.double() for routed, _ in parts)
    if with_norm:
        latent = latent / (latent.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()
        latent = latent * (1 if norm.gain is None else norm.gain.double())
    return sum(shared.double() for _, shared in parts) + latent @ weight.double().t()


def calls(tp, name, tokens, dtype, folded=True, with_norm=True):
    """Errors of four calls, the last two of the same inputs; their bits; what was issued; whether inputs' pads survive."""
    weight, norm = weights(dtype, folded)
    own = weight[tp.columns(H)].contiguous()
    errors, outs = [], []
    tp.issued.clear()
    for call in (1, 2, 3, 3):
        routed, shared = partials(tokens, tp.rank, dtype, call)
        pad = torch.full((tokens, 2 * H), -768.0, dtype=dtype)
        pad[:, :H] = shared
        # The library's all-reduce, which 129 tokens fall back on, takes no strided rows.
        given = pad[:, :H] if tokens <= 128 else shared
        out = TAILS[name].function(routed, given, own, norm if with_norm else None, tp)
        ref = reference(tokens, tp.size, dtype, folded, call, with_norm)
        errors.append(float((out.double() - ref).norm() / ref.norm()))
        outs.append(out.clone())
        assert (pad[:, H:] == -768).all()
    return {
        "errors": errors,
        "same_bits": torch.equal(outs[2], outs[3]),
        "out": outs[3].float().tolist(),
        "issued": [one.kind for one in tp.issued],
    }


def all_calls(tp):
    answer = {}
    for name in NAMES:
        for tokens, dtype in (
            (1, torch.bfloat16),
            (2, torch.float16),
            (5, torch.bfloat16),
            (17, torch.float16),
        ):
            answer[f"{name} {tokens} {dtype}"] = calls(tp, name, tokens, dtype)
        answer[f"{name} gain apart"] = calls(tp, name, 3, torch.bfloat16, folded=False)
        answer[f"{name} no norm"] = calls(tp, name, 3, torch.bfloat16, with_norm=False)
        answer[f"{name} many"] = calls(tp, name, 129, torch.bfloat16)
    check_peers()
    return answer


def late(tp, name):
    """Rank 1 comes to the first call and to no other; what rank 0 gets, and what it is told."""
    peer_launch.LIMIT_S = 0.5
    calls(tp, name, 1, torch.bfloat16)
    if tp.rank == 1:
        return None
    weight, norm = weights(torch.bfloat16, True)
    own = weight[tp.columns(H)].contiguous()
    out = TAILS[name].function(*partials(1, 0, torch.bfloat16, 5), own, norm, tp)
    try:
        check_peers()
    except LatentMoEError as error:
        return {"nan": bool(out.isnan().all()), "told": str(error)}
    return {"nan": bool(out.isnan().all()), "told": None}


if __name__ == "__main__":
    tp = int(sys.argv[1])
    ranks = launch(all_calls, tp)
    first = ranks[0]
    print(
        json.dumps(
            {
                "ranks": [
                    {key: {k: v for k, v in one.items() if k != "out"} for key, one in rank.items()}
                    for rank in ranks
                ],
                "agree": all(one["out"] == first[key]["out"] for rank in ranks for key, one in rank.items()),
                "late": {name: launch(late, 2, name)[0] for name in NAMES} if tp == 2 else {},
            }
        )
    )
