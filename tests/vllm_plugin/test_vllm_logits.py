"""A checkpoint written by latent_moe.layer gives the same logits from real vLLM and from our layer, at TP=1 and TP=2."""

import json
import sys
import urllib.request
from contextlib import contextmanager

import pytest
import torch
from torch.nn import functional

from latent_moe.config import LatentMoEConfig
from latent_moe.lab.bench.machine import free_ports
from latent_moe.lab.bench.model_dir import write_tokenizer
from latent_moe.lab.bench.server import Server, SupervisedProcess
from latent_moe.lab.bench.session import gemm_line
from latent_moe.layer import LatentMoELM, save_random_model
from latent_moe.parallel import launch
from latent_moe.weights import load

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


def our_logits(tp, folder: str, ids: list[int]) -> list[float]:
    """Runs on each rank: the last token's logits."""
    return WithAttention(folder, tp)(torch.tensor(ids))[-1].tolist()


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


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """Where vLLM keeps what torch.compile made, shared by the servers of this module as by those of one machine."""
    return tmp_path_factory.mktemp("cache")


@contextmanager
def served(folder, tp: int, log, tail: str = "column_parallel", more=("--enforce-eager",), **added: str):
    """A real vLLM server of the checkpoint; gives its URL."""
    port = free_ports(1)[0]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder)]
    command += ["--dtype", "float32", "--tensor-parallel-size", str(tp), "--port", str(port)]
    command += ["--max-model-len", "256", "--max-num-seqs", "2", "--max-logprobs", str(V)]
    command += ["--logprobs-mode", "raw_logits", *more]
    env = {"LATENT_MOE_TAIL": tail, "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
    if "--enforce-eager" in more:
        env["TORCHDYNAMO_DISABLE"] = "1"  # a C++ compiler stumbles over a space in the checkout's path
    env |= {"VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_OMP_THREADS_BIND": "|".join(str(i) for i in range(tp))}
    with Server(
        f"tp{tp}", SupervisedProcess(command, env | added, log), f"http://127.0.0.1:{port}"
    ) as server:
        server.wait_healthy(280)
        yield server.url


def vllm_logits(url: str, folder, ids: list[int]) -> list[float]:
    """The logits at the last of these tokens."""
    body = {"model": str(folder), "prompt": ids, "max_tokens": 1, "temperature": 0, "logprobs": V}
    body["return_tokens_as_token_ids"] = True
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    answer = json.loads(urllib.request.urlopen(request, timeout=60).read())
    top = answer["choices"][0]["logprobs"]["top_logprobs"][0]
    found = {int(key.removeprefix("token_id:")): value for key, value in top.items()}
    assert sorted(found) == list(range(V))
    return [found[token] for token in range(V)]


def worst_error(served: list[float], ours: list[list[float]]) -> float:
    """norm2 of the difference over norm2 of ours, the worst of our ranks."""
    expected = torch.tensor(ours, dtype=torch.float64)
    gaps = torch.tensor(served, dtype=torch.float64) - expected
    return float((gaps.norm(dim=1) / expected.norm(dim=1)).max())


@pytest.mark.timeout(300)
@pytest.mark.parametrize("tp", [1, 2])
def test_vllm_and_our_layer_agree_on_every_logit(folder, tmp_path, tp):
    log = tmp_path / "server.log"
    with served(folder, tp, log) as url:
        found = vllm_logits(url, folder, IDS)
    assert worst_error(found, launch(our_logits, tp, str(folder), IDS)) < 1e-5
    if tp == 1:
        assert "tail column_parallel refused" in log.read_text()
        assert "tp = 1" in log.read_text()
    else:
        assert "N=64 K=64 (this rank's 64 of 128 rows" in gemm_line(log)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("tail", ["column_parallel", "token_parallel"])
def test_a_compiled_model_gives_the_same_logits_at_every_length(folder, cache, tmp_path, tail):
    """torch.compile keeps what it traced at one T: a tail that decides by T must not have been looked into. vLLM keeps
    compiled models for the next server: one of another tail must not be taken for this one's."""
    if " " in sys.prefix:
        pytest.skip("torch gives its C++ compiler paths that it cannot read with a space in them")
    log = tmp_path / "server.log"
    lengths = (12, 7, 1)
    with served(folder, 2, log, tail, more=(), VLLM_CACHE_ROOT=str(cache)) as url:
        found = [vllm_logits(url, folder, IDS[:length]) for length in lengths]
    text = log.read_text()
    assert "saved AOT compiled function" in text
    assert "Compiling model again" not in text  # it found, and could not load, what another tail had left
    assert f"tail {tail} for the latent MoE layers, tp 2" in text
    for length, logits in zip(lengths, found, strict=True):
        assert worst_error(logits, launch(our_logits, 2, str(folder), IDS[:length])) < 1e-5
