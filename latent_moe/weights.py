"""A layer's weights: names, shapes, a rank's shard of a tensor; seeded random ones, and those of a checkpoint on disk.

H hidden, L latent (H when the layer is not latent), E experts, I expert width, S shared width. Names are
Kimi-K3's own; in a checkpoint (model.safetensors beside config.json, as published models have them) each has
`model.layers.{i}.block_sparse_moe.` before it.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from latent_moe.config import LatentMoEConfig, from_hf, to_hf
from latent_moe.errors import InputError
from latent_moe.files import write_json

BIAS = "gate.e_score_correction_bias"
# Blocks with a seed of their own along a tensor's sharded dimension: a rank of 1, 2, 4 or 8 makes only its own.
_BLOCKS = 8


def tensor_shapes(config: LatentMoEConfig) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every tensor in one layer's full state dict."""
    h, experts = config.hidden_size, config.num_experts
    shapes: dict[str, tuple[int, ...]] = {"gate.weight": (experts, h), BIAS: (experts,)}
    if config.latent_size is not None:
        shapes["routed_expert_down_proj.weight"] = (config.latent_size, h)
        shapes["routed_expert_up_proj.weight"] = (h, config.latent_size)
        if config.latent_norm:
            shapes["routed_expert_norm.weight"] = (config.latent_size,)
    for expert in range(experts):
        for name in ("w1", "w3", "w2"):
            wide = (config.expert_width, config.expert_input_size)
            shapes[f"experts.{expert}.{name}.weight"] = wide[::-1] if name == "w2" else wide
    if config.shared_width:
        shapes["shared_experts.gate_proj.weight"] = (config.shared_width, h)
        shapes["shared_experts.up_proj.weight"] = (config.shared_width, h)
        shapes["shared_experts.down_proj.weight"] = (h, config.shared_width)
    return shapes


def split_dim(name: str) -> int:
    """The dimension along which ranks split a tensor: columns of the last projection of an MLP, rows elsewhere."""
    return 1 if name.endswith(("w2.weight", "shared_experts.down_proj.weight")) else 0


def shard(weights: Mapping[str, torch.Tensor], name: str, index: int, count: int) -> torch.Tensor:
    """Piece `index` of `count` of a tensor along `split_dim`, without keeping the whole alive.

    Raises InputError when the tensor is missing or does not split evenly.
    """
    take = getattr(weights, "shard", None)
    if take is not None and count > 1:
        return take(name, index, count)
    if name not in weights:
        raise InputError(f"the state dict lacks {name}")
    return slice_of(weights[name], name, index, count)


def slice_of(whole, name: str, index: int, count: int) -> torch.Tensor:
    """As `shard`, from a tensor or a safetensors slice of it."""
    start, stop = bounds(name, tuple(_shape(whole)), index, count)
    piece = whole[start:stop] if split_dim(name) == 0 else whole[:, start:stop]
    return piece.clone(memory_format=torch.contiguous_format) if count > 1 else piece


def bounds(name: str, shape: tuple[int, ...], index: int, count: int) -> tuple[int, int]:
    """First and one past the last row (or column) of piece `index` of `count`."""
    size = shape[split_dim(name)]
    if size % count:
        raise InputError(f"{count} ranks do not divide {name} of size {size}")
    width = size // count
    return index * width, (index + 1) * width


def _shape(whole) -> tuple[int, ...]:
    return tuple(whole.get_shape() if hasattr(whole, "get_shape") else whole.shape)


class SeededWeights(Mapping[str, torch.Tensor]):
    """Random weights scaled as a trained layer's: normal with variance 1/fan-in, norm weights near 1.

    The same seed gives the same values on every rank and for every tp. Tensors are made when they are asked for,
    a rank's shard without the rest. They are drawn in fp32 and rounded to `dtype`; the router's correction bias
    stays fp32.
    """

    def __init__(self, config: LatentMoEConfig, seed: int = 0, dtype: torch.dtype = torch.float32):
        self.shapes, self.seed, self.dtype = tensor_shapes(config), seed, dtype

    def __getitem__(self, name: str) -> torch.Tensor:
        """The whole tensor."""
        return self._blocks(name, 0, self._count(name))

    def __contains__(self, name: object) -> bool:
        return name in self.shapes

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)

    def shard(self, name: str, index: int, count: int) -> torch.Tensor:
        """Piece `index` of `count`: only its blocks are drawn when the blocks split evenly."""
        if name not in self.shapes:
            raise InputError(f"the state dict lacks {name}")
        bounds(name, self.shapes[name], index, count)
        blocks = self._count(name)
        if blocks % count:
            return slice_of(self[name], name, index, count)
        each = blocks // count
        return self._blocks(name, index * each, (index + 1) * each)

    def _count(self, name: str) -> int:
        return math.gcd(self.shapes[name][split_dim(name)], _BLOCKS)

    def _blocks(self, name: str, first: int, last: int) -> torch.Tensor:
        dim, shape = split_dim(name), list(self.shapes[name])
        shape[dim] //= self._count(name)
        drawn = [self._draw(name, block, shape) for block in range(first, last)]
        whole = drawn[0] if len(drawn) == 1 else torch.cat(drawn, dim)
        return whole if name == BIAS else whole.to(self.dtype)

    def _draw(self, name: str, block: int, shape: list[int]) -> torch.Tensor:
        digest = hashlib.blake2b(f"{self.seed}/{name}/{block}".encode(), digest_size=8).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
        noise = torch.randn(shape, generator=generator)  # `shape`: one block of the tensor
        if len(shape) == 1:
            return noise.mul_(0.1) if name == BIAS else noise.mul_(0.1).add_(1.0)
        return noise.mul_(self.shapes[name][1] ** -0.5)


WEIGHTS_FILE = "model.safetensors"
_PREFIX = "model.layers.{}.block_sparse_moe."


def save(
    folder: str | Path,
    config: LatentMoEConfig,
    layers: list[Mapping[str, torch.Tensor]],
    extra: Mapping[str, torch.Tensor] | None = None,
    config_extra: dict[str, Any] | None = None,
) -> None:
    """Write full state dicts, one a layer, and `extra` tensors under their own names.

    `config_extra` adds fields to config.json. Raises InputError when there are not num_layers layers, or a tensor
    is missing or has another shape.
    """
    from safetensors.torch import save_file

    if len(layers) != config.num_layers:
        raise InputError(f"{len(layers)} layers given, the config has {config.num_layers}")
    tensors = {name: tensor.contiguous() for name, tensor in (extra or {}).items()}
    for number, layer in enumerate(layers):
        for name, shape in tensor_shapes(config).items():
            if name not in layer or tuple(layer[name].shape) != shape:
                raise InputError(f"layer {number}: {name} is missing or not of shape {list(shape)}")
            tensors[_PREFIX.format(number) + name] = layer[name].contiguous()
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path / WEIGHTS_FILE, metadata={"format": "pt"})
    write_json(path / "config.json", _description(config) | (config_extra or {}), indent=2)


def _description(config: LatentMoEConfig) -> dict[str, Any]:
    return {"architectures": ["LatentMoEForCausalLM"], "model_type": "latent_moe", **to_hf(config)}


def load(folder: str | Path) -> "Checkpoint":
    """Open a checkpoint; tensors are read when they are asked for. Raises InputError when it cannot be."""
    path = Path(folder)
    if not (path / WEIGHTS_FILE).is_file():
        raise InputError(f"{path}: no {WEIGHTS_FILE} there")
    return Checkpoint(path, from_hf(path))


class Checkpoint(Mapping[str, torch.Tensor]):
    """Every tensor of a checkpoint by its name in the file."""

    def __init__(self, folder: Path, config: LatentMoEConfig):
        from safetensors import SafetensorError, safe_open

        self.config = config
        try:
            self._file = safe_open(folder / WEIGHTS_FILE, "pt")
        except (OSError, SafetensorError) as error:
            raise InputError(f"{folder / WEIGHTS_FILE}: cannot be read ({error})") from error
        self._names = frozenset(self._file.keys())

    def layer(self, number: int) -> "LayerWeights":
        """The full state dict of one layer."""
        return LayerWeights(self, _PREFIX.format(number))

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self._names:
            raise KeyError(name)
        return self._file.get_tensor(name)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._names))

    def __len__(self) -> int:
        return len(self._names)

    def slice(self, name: str):
        """A tensor's handle: its shape and parts can be read without the rest."""
        return self._file.get_slice(name)


class LayerWeights(Mapping[str, torch.Tensor]):
    """One layer of a checkpoint under the layer's own names; a rank's shard is read without the rest."""

    def __init__(self, checkpoint: Checkpoint, prefix: str):
        self._checkpoint, self._prefix = checkpoint, prefix
        self._names = [name.removeprefix(prefix) for name in checkpoint if name.startswith(prefix)]
        self.shapes = {name: tuple(self._slice(name).get_shape()) for name in self._names}

    def _slice(self, name: str):
        return self._checkpoint.slice(self._prefix + name)

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._checkpoint[self._prefix + name]

    def __contains__(self, name: object) -> bool:
        return name in self.shapes

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def shard(self, name: str, index: int, count: int) -> torch.Tensor:
        """Piece `index` of `count` along the tensor's sharded dimension."""
        if name not in self.shapes:
            raise InputError(f"the state dict lacks {name}")
        return slice_of(self._slice(name), name, index, count)
