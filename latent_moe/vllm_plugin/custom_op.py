"""One operator that torch.compile does not look into: the end of a layer with a tail that cannot be traced.

What torch.compile traces at one T it keeps for every T. A tail that decides by T, waits on handles, changes streams or
launches Triton kernels of its own would be frozen as it was then: in a compiled model it runs behind this operator.

T tokens, H hidden, L latent.
"""

from collections.abc import Callable

import torch

End = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

_library = torch.library.Library("latent_moe", "FRAGMENT")
_ends: dict[str, End] = {}


def register(layer: str, end: End) -> None:
    """Let `end(routed [T, L], shared [T, H]) -> [T, H]` end the layer of this name; a name is taken by its last layer."""
    _ends[layer] = end


def end_layer(layer: str, routed: torch.Tensor, shared: torch.Tensor) -> torch.Tensor:
    """The layer's output [T, H], written over `shared` [T, H]; `routed` [T, L] may be overwritten."""
    torch.ops.latent_moe.end_layer(routed, shared, layer)
    return shared


def _end_layer(routed: torch.Tensor, shared: torch.Tensor, layer: str) -> None:
    out = _ends[layer](routed, shared)
    # An operator may not return what it was given, and most tails do: all of them end in `shared`.
    if out.data_ptr() != shared.data_ptr():
        shared.copy_(out)
    elif out.stride() != shared.stride():
        shared.copy_(out.clone())


def _nothing(routed: torch.Tensor, shared: torch.Tensor, layer: str) -> None:
    """Tracing sees that both tensors are written, and no more."""


_library.define(
    "end_layer(Tensor(a!) routed, Tensor(b!) shared, str layer) -> ()",
    tags=(torch.Tag.needs_fixed_stride_order,),
)
_library.impl("end_layer", _end_layer, "CompositeExplicitAutograd")
torch.library.register_fake("latent_moe::end_layer", _nothing, lib=_library)
