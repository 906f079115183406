"""`early_weights`: fused between two all-reduces of its own, each kernel started while the one before still runs.

T tokens, H hidden, L latent, tp ranks; W_r [H/tp, L]. A library's all-reduce never lets the next kernel in early; these
do (NVIDIA's programmatic dependent launch), and the fused kernel has its weights in registers before the latent is summed.
"""

import torch

from latent_moe.fused_kernel import DTYPES, norm_project_accumulate, why_not
from latent_moe.fused_kernel.peer_launch import SUM_PROGRAMS, latent_words, sum_hidden, sum_latent
from latent_moe.fused_kernel.tile_plan import bucket
from latent_moe.parallel import TensorParallel
from latent_moe.tail_variants.declaration import Tail
from latent_moe.tail_variants.fused import fused
from latent_moe.tail_variants.mailbox import mailbox_for, why_no_mailbox

MOST_TOKENS = 128  # above, the library's all-reduces move the bytes better: words carry half payload


def early_weights(
    routed: torch.Tensor, shared: torch.Tensor, weight: torch.Tensor, norm, tp: TensorParallel
) -> torch.Tensor:
    """l = sum(routed); shared[:, r] += norm(l) W_r^T; out = sum(shared), through mapped peer memory.

    As `fused` above 128 tokens, and where no memory could be mapped: outside of this host, or in a graph whose stream
    had not run this T before.
    """
    tokens, latent = routed.shape
    boxes = _mailboxes(tp, bucket(tokens), latent, shared.shape[1]) if 0 < tokens <= MOST_TOKENS else None
    if boxes is None:
        return fused(routed, shared, weight, norm, tp)
    routed = routed.contiguous()  # [T, L]
    sum_latent(routed, tp.rank, tp.size, boxes[0], bucket(tokens))
    own = shared[:, tp.columns(shared.shape[1])]  # [T, H/tp], a view
    gain, eps = (None, None) if norm is None else (norm.gain, norm.eps)
    norm_project_accumulate(routed, gain, eps, weight, own)
    sum_hidden(shared, tp.rank, tp.size, boxes[1], bucket(tokens))
    return shared  # [T, H]


def _mailboxes(tp: TensorParallel, capacity: int, latent: int, hidden: int):
    """(the latent's, the hidden's), or None."""
    words = 2 * tp.size * latent_words(capacity, latent)
    first = mailbox_for(tp, ("latent", capacity, latent), words, SUM_PROGRAMS)
    second = mailbox_for(tp, ("hidden", capacity, hidden), 2 * capacity * hidden, SUM_PROGRAMS)
    return None if first is None or second is None else (first, second)


def refuse_peer_memory(config, tp_size: int, _tokens: int) -> str | None:
    """Why no tail through peer memory can run here on these sizes, or None."""
    hidden, latent = config.hidden_size, config.latent_size or config.hidden_size
    reason = why_not(hidden, latent) or why_no_mailbox()
    if reason is None and (hidden % (16 * tp_size) or latent % 32):
        reason = (
            f"hidden {hidden} on {tp_size} ranks is no multiple of 16 each, or latent {latent} none of 32"
        )
    return reason


TAIL = Tail(
    "early_weights",
    early_weights,
    "own",
    "fused between all-reduces through peer memory, weights read early",
    refuse_peer_memory,
    DTYPES,
    folds_gain=True,
)
