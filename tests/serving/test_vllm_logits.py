"""A checkpoint written by latent_moe.layer gives the same logits from real vLLM and from our layer, at TP=1 and TP=2."""

import json
import sys
import urllib.request

import pytest
import torch
from torch.nn import functional

from latent_moe.config import LatentMoEConfig
from latent_moe.layer import LatentMoELM, load, save_random_model
from latent_moe.parallel import launch
from latent_moe.serving.boot import gemm_line
from latent_moe.serving.model_dir import write_tokenizer
from latent_moe.serving.server import Guarded, Server, free_port

pytestmark = pytest.mark.vllm

V, HEADS, KV_HEADS, WIDTH = 256, 4, 2, 32
CONFIG = LatentMoEConfig(
    hidden_size=128,
    latent_size=64,
    num_experts=8,
    experts_per_token=2,
    expert_width=64,
    shared_width=64,
    num_layers=2,
)
IDS = [17, 203, 64, 99, 5, 31, 180, 44, 71, 250, 8, 133]
ATTENTION = {
    "q_proj": (HEADS * WIDTH, 128),
    "k_proj": (KV_HEADS * WIDTH, 128),
    "v_proj": (KV_HEADS * WIDTH, 128),
}


class WithAttention(LatentMoELM):
    """Our language model with the attention of the served one, written here from its definition."""

    def __init__(self, folder, tp):
        checkpoint = load(folder)
        super().__init__(checkpoint, tp, dtype=torch.float32)
        self.tensors = checkpoint

    def attention(self, layer: int, x: torch.Tensor) -> torch.Tensor:
        """x [T, H] -> [T, H]: causal, grouped queries, no positions."""
        take = lambda name: self.tensors[f"model.layers.{layer}.{name}.weight"]  # noqa: E731
        x = functional.rms_norm(x, (128,), take("input_layernorm"), 1e-5)
        q, k, v = (
            (x @ take(f"self_attn.{name}").T).view(len(x), -1, WIDTH).transpose(0, 1) for name in ATTENTION
        )
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return out.transpose(0, 1).reshape(len(x), -1) @ take("self_attn.o_proj").T

    @torch.no_grad()
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """ids [T] -> logits [T, V]."""
        x = self.embed[ids]
        for number, (norm, layer) in enumerate(zip(self.norms, self.layers, strict=True)):
            x = x + self.attention(number, x)
            x = x + layer(norm(x))
        return self.norm(x) @ self.head.T


def our_logits(tp, folder: str) -> list[float]:
    """Runs on each rank: the last token's logits."""
    return WithAttention(folder, tp)(torch.tensor(IDS))[-1].tolist()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A checkpoint of our layer's, with attention beside it."""
    pytest.importorskip("vllm")
    from safetensors.torch import load_file, save_file

    path = tmp_path_factory.mktemp("checkpoint")
    extra = {"num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": WIDTH}
    extra |= {"max_position_embeddings": 512}
    save_random_model(path, CONFIG, V, seed=3, config_extra=extra)
    weights = load_file(path / "model.safetensors")
    generator = torch.Generator().manual_seed(9)
    for layer in range(CONFIG.num_layers):
        for name, shape in {**ATTENTION, "o_proj": (128, HEADS * WIDTH)}.items():
            drawn = torch.randn(shape, generator=generator) * shape[1] ** -0.5
            weights[f"model.layers.{layer}.self_attn.{name}.weight"] = drawn
        weights[f"model.layers.{layer}.input_layernorm.weight"] = 1 + 0.1 * torch.randn(
            128, generator=generator
        )
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    write_tokenizer(path, V)
    return path


def vllm_logits(folder, tp: int, log) -> tuple[list[float], str | None]:
    """The last prompt token's logits from a real server, and what its log says about the up-projection."""
    port = free_port()
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder)]
    command += [
        "--dtype",
        "float32",
        "--enforce-eager",
        "--tensor-parallel-size",
        str(tp),
        "--port",
        str(port),
    ]
    command += [
        "--max-model-len",
        "256",
        "--max-num-seqs",
        "2",
        "--max-logprobs",
        str(V),
        "--logprobs-mode",
        "raw_logits",
    ]
    env = {"LATENT_MOE_TAIL": "column_parallel", "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
    env |= {"VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_OMP_THREADS_BIND": "|".join(str(i) for i in range(tp))}
    with Server(f"tp{tp}", Guarded(command, env, log), port) as server:
        server.wait_healthy(240)
        body = {"model": str(folder), "prompt": IDS, "max_tokens": 1, "temperature": 0, "logprobs": V}
        body["return_tokens_as_token_ids"] = True
        request = urllib.request.Request(
            f"{server.url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        answer = json.loads(urllib.request.urlopen(request, timeout=60).read())
    top = answer["choices"][0]["logprobs"]["top_logprobs"][0]
    found = {int(key.removeprefix("token_id:")): value for key, value in top.items()}
    assert sorted(found) == list(range(V))
    return [found[token] for token in range(V)], gemm_line(log)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("tp", [1, 2])
def test_vllm_and_our_layer_agree_on_every_logit(folder, tmp_path, tp):
    served, gemm = vllm_logits(folder, tp, tmp_path / "server.log")
    ours = launch(our_logits, tp, str(folder))
    for logits in ours:
        expected = torch.tensor(logits, dtype=torch.float64)
        error = (torch.tensor(served, dtype=torch.float64) - expected).norm() / expected.norm()
        assert error < 1e-5
    log = (tmp_path / "server.log").read_text()
    if tp == 1:
        assert "tail column_parallel refused" in log
        assert "tp = 1" in log
    else:
        assert "N=64 K=64 (this rank's 64 of 128 rows" in gemm
