"""A model folder that vLLM can serve without any download: config.json and a small tokenizer, no weights.

The tokenizer has one word per token id, so that a prompt of N random token ids, decoded and encoded again, is N tokens
again: the benchmark client asks for exact prompt lengths.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from latent_moe.config import PRESETS, to_hf
from latent_moe.errors import InputError, unknown
from latent_moe.files import write_json

# The longest of these is longer than any word and its space: vLLM refuses prompts of more characters than
# max-model-len times the longest token.
SPECIAL = ("<pad>", "<s>", "</s>", "<unknown>")
# What a server needs beside the MoE layers of a preset: K3's attention without positions, and the vocabulary.
SERVED: dict[str, dict[str, Any]] = {
    "cpu": {
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "vocab_size": 2048,
        "max_position_embeddings": 2048,
    },
    "k3_slice": {
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 32768,
        "max_position_embeddings": 16384,
    },
    "k3_eight": {
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 163840,
        "max_position_embeddings": 16384,
    },
    "served_tiny": {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "vocab_size": 256,
        "max_position_embeddings": 1024,
    },
}
# The layer's sizes that a recipe may change. Results name their model by these fields too: add none.
_SIZES = (
    "hidden_size",
    "routed_expert_hidden_size",
    "num_hidden_layers",
    "num_experts",
    "num_experts_per_token",
    "moe_intermediate_size",
    "num_shared_experts",
)
# Recipes that were written when two models shared a name.
_OLD_NAMES = {"tiny": "served_tiny"}


def model_config(name: str, changes: dict[str, Any] | None = None) -> dict[str, Any]:
    """config.json of the model called `name`, with some fields changed. Raises InputError for what is not known."""
    name = _OLD_NAMES.get(name, name)
    if name not in SERVED:
        raise unknown("model", name, SERVED)
    layer = to_hf(PRESETS[name])
    own = {field: layer[field] for field in _SIZES} | SERVED[name]
    fields = sorted(set(changes or {}) - {*own, "latent_moe_use_norm", "head_dim", "hidden_act"})
    if fields:
        raise InputError(f"model {name}: no field {fields[0]!r} to change")
    for field, value in (changes or {}).items():
        if isinstance(own.get(field), int) and not (type(value) is int and value > 0):
            raise InputError(f"model {name}: {field} must be a whole number above 0, not {value!r}")
    return {**_common(), **own, **(changes or {})}


def _common() -> dict[str, Any]:
    return {
        "architectures": ["LatentMoEForCausalLM"],
        "model_type": "latent_moe",
        "latent_moe_use_norm": True,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "routed_scaling_factor": 1.0,
        "first_k_dense_replace": 0,
        "dtype": "bfloat16",
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def write_model(folder: str | Path, config: dict[str, Any]) -> Path:
    """Write config.json and the tokenizer into `folder`; returns it."""
    folder = Path(folder)
    write_json(folder / "config.json", config, indent=2)
    write_tokenizer(folder, config["vocab_size"])
    return folder


def write_tokenizer(folder: Path, vocab_size: int) -> None:
    """Write a tokenizer of `vocab_size` words w4, w5, ... after the special tokens."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit

    words = [*SPECIAL, *(f"w{index}" for index in range(len(SPECIAL), vocab_size))]
    tokenizer = Tokenizer(WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unknown>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": "<pad>",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unknown>",
        "clean_up_tokenization_spaces": False,
    }
    write_json(folder / "tokenizer_config.json", settings, indent=2)


def fingerprint(config: dict[str, Any]) -> str:
    """A short name for this config: results of different models must not meet in one comparison."""
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:12]
