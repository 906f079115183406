"""The up-projection's weight for the tails, kept while vLLM loads it and whole where a tail needs it whole.

H hidden, L latent, tp ranks; W [H, L], W_r [H/tp, L].
"""

import logging

import torch
from torch import nn

from latent_moe.parallel import TensorParallel
from latent_moe.tail_variants.norm import fold_gain

logger = logging.getLogger("vllm.latent_moe")
FOLDED_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
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
