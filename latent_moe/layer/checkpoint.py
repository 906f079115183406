"""A checkpoint on disk: model.safetensors and config.json, as published models have them.

Names in the file: `model.layers.{i}.block_sparse_moe.` and the layer's own name.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from latent_moe.config import LatentMoEConfig
from latent_moe.config_file import from_hf, to_hf
from latent_moe.errors import InputError
from latent_moe.layer.weights import slice_of, tensor_shapes

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
    (path / "config.json").write_text(
        json.dumps(_description(config) | (config_extra or {}), indent=2) + "\n"
    )


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
