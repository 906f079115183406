"""Which tail a layer of the server ends with and why, the line in the server's log that says so, and the tail's weight.

T tokens, H hidden, L latent, tp ranks; W [H, L], W_r [H/tp, L].
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass

import torch
from torch import nn

from latent_moe.config import LatentMoEConfig
from latent_moe.errors import InputError, unknown
from latent_moe.parallel import TensorParallel
from latent_moe.runner import Choose, folds_gain, refusal
from latent_moe.tail_variants.declaration import Tail
from latent_moe.tail_variants.registry import ASKABLE, AUTO, DEFAULT, TAILS
from latent_moe.tails import fold_gain

logger = logging.getLogger("vllm.latent_moe")
FOLDED_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_gathered_bytes: list[int] = []
_logged: set[str] = set()
_choosers: list[Choose] = []


def hand_over(choose: Choose) -> None:
    """Let `choose` name the tail of each step where LATENT_MOE_TAIL=auto; the latest one counts."""
    _choosers[:] = [choose]


def asked_tail() -> str:
    """LATENT_MOE_TAIL, or column_parallel.

    Raises InputError naming the tails there are, and for `auto` where nothing was handed over that chooses.
    """
    name = os.environ.get("LATENT_MOE_TAIL") or DEFAULT
    if name not in ASKABLE:
        raise unknown("LATENT_MOE_TAIL", name, ASKABLE)
    if name == AUTO and not _choosers:
        raise InputError("LATENT_MOE_TAIL=auto: vLLM loaded this plugin without what chooses a tail")
    return name


@dataclass
class TailChoice:
    """The tail that was asked for, and whether this layer can end with it (`reason`: why not)."""

    asked: str
    config: LatentMoEConfig | None
    tp_size: int
    reason: str | None = None

    def __post_init__(self):
        # Looked up now: torch.compile traces what follows, and may not trace an import.
        self._tail = None if self.asked == AUTO else TAILS[self.asked]

    @classmethod
    def of_layer(cls, asked: str, runner, weight: UpProjectionWeight | None, ranks) -> TailChoice:
        """Decide for one layer of the server, from what vLLM's runner knows about it."""
        if weight is None:
            return cls(asked, None, ranks.size, "the layer has no up-projection from a latent space")
        config = _config_of(runner, weight)
        tail = TAILS[DEFAULT if asked == AUTO else asked]
        refused = refusal(tail, config, ranks.size)
        if refused is None and asked != AUTO:
            # For one token: the tail's own condition there is about the machine, the sizes and the dtype.
            refused = refusal(tail, config, ranks.size, tokens=1, dtype=weight.dtype)
        reason = refused.text if refused else None
        if reason is None and runner.moe_config.skip_final_all_reduce:
            reason = "a later layer does the final all-reduce"
        if reason is None and config.shared_width == 0:
            reason = "the layer has no shared experts: there is no second partial sum for a tail to end with"
        return cls(asked, config, ranks.size, reason)

    @property
    def usable(self) -> bool:
        """Whether the layer ends with a tail of this package."""
        return self.reason is None

    @property
    def needs_all_rows(self) -> bool:
        """Whether the whole up-projection is needed on every rank (`auto` may pick such a tail at some T)."""
        return self.usable and (self._tail is None or self._tail.rows == "all")

    @property
    def traceable(self) -> bool:
        """Whether torch.compile may look into the tail; `auto` decides by T."""
        return self._tail is not None and self._tail.traceable

    @property
    def folds_gain(self) -> bool:
        """Whether the norm's gain is to be folded into the up-projection's weight when that is loaded."""
        return self.usable and self.config is not None and folds_gain(self.asked, self.config, self.tp_size)

    def announce(self, weight: UpProjectionWeight | None) -> None:
        """One line in the log for all layers that were decided alike, written while the model is built: a compiled model
        cannot log what it runs."""
        if weight is None or not self.usable:
            text = f"tail {self.asked} refused, layers end as vLLM ends them: {self.reason}"
        else:
            text = f"tail {self.asked} for the latent MoE layers, tp {self.tp_size}{self._gemm(weight)}"
        _say_once(self.tp_size, f"latent_moe: {text}")

    def _gemm(self, weight: UpProjectionWeight) -> str:
        """The up-projection GEMM's fixed sizes, where one tail is sure."""
        if self._tail is None:
            return ""
        rows = weight.hidden_size // (1 if self._tail.rows == "all" else self.tp_size)
        return f", up-projection GEMM N={rows} K={weight.latent_size}"

    def run(self, routed, shared, weight: UpProjectionWeight, norm, ranks) -> torch.Tensor:
        """routed [T, L], shared [T, H], partial sums -> [T, H] on every rank."""
        tail = self._tail or self._chosen(routed.shape[0], ranks)
        rows = weight.all if tail.rows == "all" else weight.own
        if not torch.compiler.is_compiling():
            self._log_shape(tail.name, routed.shape[0], rows, weight.hidden_size, ranks.rank)
        return tail.function(routed, shared, rows, norm, ranks)

    def _chosen(self, tokens: int, ranks) -> Tail:
        assert self.config is not None, "a usable layer has a config"
        name, _ = _choosers[0](tokens, self.config, ranks)
        return TAILS[name]

    def _log_shape(self, name: str, tokens: int, rows: torch.Tensor, hidden: int, rank: int) -> None:
        part = "all" if rows.shape[0] == hidden else f"this rank's {rows.shape[0]}"
        shape = f"M=T N={rows.shape[0]} K={rows.shape[1]}"
        if shape + name not in _logged and rank == 0:
            _logged.add(shape + name)
            logger.info(
                "latent_moe: tail %s ran the up-projection GEMM %s (%s of %d rows; first at T=%d)",
                *(name, shape, part, hidden, tokens),
            )


def _config_of(runner, weight: UpProjectionWeight) -> LatentMoEConfig:
    moe = runner.moe_config
    scaled = runner.routed_scaling_factor
    return LatentMoEConfig(
        hidden_size=weight.hidden_size,
        latent_size=weight.latent_size,
        num_experts=moe.num_logical_experts,
        experts_per_token=moe.experts_per_token,
        expert_width=max(1, moe.intermediate_size_per_partition * moe.tp_size),
        # The runner knows that there are shared experts, not how wide they are.
        shared_width=0 if runner.shared_experts is None else weight.hidden_size,
        routed_scaling_factor=scaled,
        scale_routed_output=scaled != 1.0,
        sequence_parallel=moe.is_sequence_parallel,
        moe_tp_size=moe.tp_size,
    )


def _say_once(tp_size: int, line: str) -> None:
    from vllm.distributed import get_tensor_model_parallel_rank

    if line not in _logged and (tp_size == 1 or get_tensor_model_parallel_rank() == 0):
        _logged.add(line)
        logger.info(line)


_gathered_bytes: list[int] = []


class UpProjectionWeight:
    """W as the tails take it: `all` rows, or this rank's `own`.

    vLLM gives either all rows to every rank, or (0.32's Kimi-K3) only its own. From all rows a rank's own are a view;
    from its own the whole is gathered once, right after loading, when the tail that was asked for needs it: the
    alternative, shard + all-gather in every step, is a third thing and not the baseline.
    """

    def __init__(self, up_proj: nn.Module, tp: TensorParallel, own_rows_only: bool):
        self.tp = tp
        self.own_rows_only = own_rows_only
        self.hidden_size = up_proj.weight.shape[0] * (tp.size if own_rows_only else 1)
        self.latent_size = up_proj.weight.shape[1]
        self.dtype = up_proj.weight.dtype
        self._kept: torch.Tensor | None = None
        self._whole: torch.Tensor | None = None

    def keep(self, weight: torch.Tensor, whole: bool) -> torch.Tensor:
        """Take hold of the loaded weight; with `whole` gather all rows if this rank has only its own.

        Returns the tensor that the module should hold from now on: the same rows, as a view of the whole where that was
        gathered, so that this rank's rows are not held twice.
        """
        self._kept = weight
        self._whole = None if self.own_rows_only else weight
        if self._whole is None and whole:
            self._whole = self.tp.all_gather(weight.contiguous())  # [H, L]
            self._kept = self._whole[self.tp.columns(self.hidden_size)]  # [H/tp, L]
            _say_gathered((self._whole.numel() - weight.numel()) * weight.element_size())
        return self._kept

    @property
    def own(self) -> torch.Tensor:
        """W_r [H/tp, L]."""
        assert self._kept is not None, "the weights are not loaded yet"
        return self._kept if self.own_rows_only else self._kept[self.tp.columns(self.hidden_size)]

    @property
    def all(self) -> torch.Tensor:
        """W [H, L]."""
        assert self._whole is not None, "all rows were asked for, but not gathered after loading"
        return self._whole


def _say_gathered(extra_bytes: int) -> None:
    """One line a layer: what keeping all rows costs this rank, by itself and so far (K3 at tp 8: 4.1 GB in the end)."""
    _gathered_bytes.append(extra_bytes)
    total = sum(_gathered_bytes)
    text = "latent_moe: all rows of the up-projection gathered, %d bytes more on this rank (%d in all)"
    logger.info(text, extra_bytes, total)


def keep_after_loading(up_proj: nn.Module, weight: UpProjectionWeight, whole: bool, fold_from=None) -> None:
    """Arrange that `weight` keeps up_proj's tensor when vLLM has loaded it, before vLLM repacks it.

    The CPU backend packs linear weights for its own kernel and empties the original: the reference taken here
    outlives that. `fold_from` is the norm whose gain is to be folded into the tensor first; weights that are
    quantised stay as they are.
    """
    method = up_proj.quant_method
    process = method.process_weights_after_loading

    def keep_then_process(layer: nn.Module) -> None:
        if fold_from is not None and layer.weight.dtype in FOLDED_DTYPES:
            # Weights may be loaded again, norm and all; a gain that is folded already is one, and harmless.
            fold_from.folded = False
            fold_gain(layer.weight.data, fold_from)
        layer.weight.data = weight.keep(layer.weight.data, whole)
        process(layer)

    method.process_weights_after_loading = keep_then_process
