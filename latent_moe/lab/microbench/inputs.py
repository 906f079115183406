"""Inputs for timing a tail: rotating sets of partial sums and weights, and the float64 answer to check against.

T tokens, H hidden, L latent, tp ranks; routed [T, L], shared [T, H], W [H, L].
"""

from dataclasses import dataclass

import torch

from latent_moe.config import LatentMoEConfig
from latent_moe.lab.microbench.timing import sets_needed
from latent_moe.parallel import TensorParallel
from latent_moe.tail_variants.declaration import Tail
from latent_moe.tails import RMSNorm, fold_gain


@dataclass
class Inputs:
    """`count` sets; `restore` copies the pristine partials back into the ones that tails overwrite."""

    routed: list[torch.Tensor]
    shared: list[torch.Tensor]
    weights: list[torch.Tensor]
    norm: RMSNorm | None
    pristine: tuple[torch.Tensor, torch.Tensor]

    def restore(self) -> None:
        """Undo what a tail wrote."""
        for routed, shared in zip(self.routed, self.shared, strict=True):
            routed.copy_(self.pristine[0])
            shared.copy_(self.pristine[1])


def partials(config: LatentMoEConfig, tokens: int, rank: int, dtype, device, seed: int = 0):
    """Rank's partial sums (routed [T, L], shared [T, H]), the same for the same seed on every rank that asks."""
    generator = torch.Generator(device).manual_seed(1000 * seed + rank)
    return tuple(
        torch.randn(tokens, size, generator=generator, device=device, dtype=dtype)
        for size in (config.expert_input_size, config.hidden_size)
    )


def make_inputs(tail: Tail, config: LatentMoEConfig, tokens: int, tp: TensorParallel, dtype) -> Inputs:
    """As many sets as exceed the caches; W is drawn once per set, scaled so that outputs stay near 1."""
    latent, hidden = config.expert_input_size, config.hidden_size
    rows = hidden if tail.rows == "all" else hidden // tp.size
    per_set = torch.empty(0, dtype=dtype).element_size() * (rows * latent + tokens * (latent + hidden))
    count = sets_needed(per_set, tp.device.type == "cuda")
    pristine = partials(config, tokens, tp.rank, dtype, tp.device)
    inputs = Inputs(
        routed=[pristine[0].clone() for _ in range(count)],
        shared=[pristine[1].clone() for _ in range(count)],
        weights=[_weight(config, tail, tp, dtype, seed=index) for index in range(count)],
        norm=_norm(config, dtype, tp.device) if config.latent_norm else None,
        pristine=pristine,
    )
    if tail.folds_gain and inputs.norm is not None:
        _fold(inputs.weights, inputs.norm)
    return inputs


def _norm(config: LatentMoEConfig, dtype, device) -> RMSNorm:
    norm = RMSNorm(config.expert_input_size, config.norm_eps, dtype=dtype).to(device)
    generator = torch.Generator(device).manual_seed(7)
    norm.weight.copy_(torch.rand(norm.weight.shape, generator=generator, device=device) + 0.5)
    return norm


def _fold(weights: list[torch.Tensor], norm: RMSNorm) -> None:
    """Every set's weight with the gain folded in; one norm serves them all."""
    gain = norm.weight.clone()
    for weight in weights:
        norm.weight.copy_(gain)
        norm.folded = False
        fold_gain(weight, norm)


def _weight(config: LatentMoEConfig, tail: Tail, tp: TensorParallel, dtype, seed: int) -> torch.Tensor:
    whole = full_weight(config, tp.device, dtype, seed)
    return whole if tail.rows == "all" else whole[tp.columns(config.hidden_size)].clone()


def full_weight(config: LatentMoEConfig, device, dtype, seed: int) -> torch.Tensor:
    """W [H, L], the same on every rank."""
    generator = torch.Generator(device).manual_seed(77 + seed)
    shape = (config.hidden_size, config.expert_input_size)
    weight = torch.randn(*shape, generator=generator, device=device, dtype=torch.float32)
    return weight.mul_(config.expert_input_size**-0.5).to(dtype)


def float64_answer(config: LatentMoEConfig, tokens: int, ranks: list[int], device, dtype) -> torch.Tensor:
    """The tail's output [T, H] in float64 from the rounded inputs of `ranks`, for weight set 0."""
    parts = [partials(config, tokens, rank, dtype, device) for rank in ranks]
    latent = sum(routed.double() for routed, _ in parts)  # [T, L]
    if config.latent_norm:
        norm = _norm(config, dtype, device)  # as drawn: not the folded one of a tail
        mean = latent.pow(2).mean(-1, keepdim=True)
        latent = latent * torch.rsqrt(mean + norm.eps) * norm.weight.double()
    weight = full_weight(config, device, dtype, 0).double()
    return sum(shared.double() for _, shared in parts) + torch.einsum("tl,hl->th", latent, weight)
