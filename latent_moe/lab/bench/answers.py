"""Greedy answers of a running server to a fixed set of prompts, one request at a time.

One at a time: answers of a batch depend on what else is in it, and that differs between arms by chance.
"""

import json
import random
import urllib.error
import urllib.request
from typing import Any

from latent_moe.errors import LatentMoEError
from latent_moe.lab.bench.recipe import ParitySpec

_REQUEST_S = 600.0
_LOWEST_ID = 16


def prompts(spec: ParitySpec, vocab_size: int | None) -> list[str | list[int]]:
    """The recipe's texts, or token ids drawn with a fixed seed (the same for every arm and every run)."""
    if spec.prompts:
        return list(spec.prompts)
    draw = random.Random(51253)
    top = vocab_size or 1024
    return [[draw.randrange(_LOWEST_ID, top) for _ in range(spec.length)] for _ in range(spec.count)]


def ask(url: str, model: str, spec: ParitySpec, vocab_size: int | None) -> list[dict[str, Any]]:
    """Ask every prompt; returns the `prompts` of a parity file. Raises LatentMoEError when the server refuses."""
    return [
        {"id": f"p{index}", **_complete(url, model, prompt, spec.max_tokens)}
        for index, prompt in enumerate(prompts(spec, vocab_size))
    ]


def _complete(url: str, model: str, prompt: str | list[int], max_tokens: int) -> dict[str, Any]:
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "logprobs": 2,
        # The prompt's own tokens: the same contexts in every arm, however early the answers part.
        "prompt_logprobs": 0,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    choice = _post(f"{url}/v1/completions", body)["choices"][0]
    logprobs = choice.get("logprobs") or {}
    answer = {"prompt": prompt, "tokens": logprobs.get("tokens"), "logprobs": logprobs.get("token_logprobs")}
    answer |= {"token_ids": choice.get("token_ids"), "top_logprobs": logprobs.get("top_logprobs")}
    answer["prompt_logprobs"] = _of_prompt(choice.get("prompt_logprobs"))
    return {name: value for name, value in answer.items() if value is not None}


def _of_prompt(listed: list[dict[str, dict[str, Any]] | None] | None) -> list[float] | None:
    """The logprob of each prompt token but the first, which follows nothing; None where the server gives none.

    vLLM lists a token's own logprob first, whatever its rank.
    """
    if not listed:
        return None
    return [next(iter(each.values()))["logprob"] for each in listed if each]


def _post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}, method="POST"
    )
    try:
        with urllib.request.urlopen(request, timeout=_REQUEST_S) as answer:
            return json.loads(answer.read())
    except (OSError, ValueError, urllib.error.URLError) as error:
        raise LatentMoEError(f"the server did not answer a greedy request ({error})") from error
