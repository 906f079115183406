"""A benchmark client with vLLM's arguments and result file: real requests, all of them timed."""

import asyncio
import json
import os
import sys
import time
import urllib.request
from pathlib import Path

FAULT = os.environ.get("STAND_IN_CLIENT", "")


def add_cli_args(parser):
    for name in (
        "model",
        "dataset-name",
        "result-dir",
        "result-filename",
        "header",
        "temperature",
        "base-url",
    ):
        parser.add_argument(f"--{name}")
    for name, default in (("port", 8000), ("random-input-len", 8), ("random-output-len", 8), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--num-prompts", type=int, required=True)
    parser.add_argument("--max-concurrency", type=int, required=True)
    for name in ("ignore-eos", "save-result", "trust-remote-code", "profile"):
        parser.add_argument(f"--{name}", action="store_true")


async def main_async(args):
    print("client:", sys.argv, vars(args), json.dumps(dict(os.environ)), flush=True)
    target = Path(args.result_dir) / args.result_filename
    if not args.result_filename.startswith("warmup"):
        fail(target)
    started = time.perf_counter()
    gate = asyncio.Semaphore(args.max_concurrency)
    took = await asyncio.gather(*(one(args, gate, index) for index in range(args.num_prompts)))
    target.write_text(json.dumps(result(args, took, time.perf_counter() - started)))


def fail(target):
    if FAULT == "slow":
        time.sleep(60)
    if FAULT == "exit":
        print("aiohttp.ClientConnectorError: cannot reach the server", flush=True)
        raise SystemExit(5)
    if FAULT == "no result":
        raise SystemExit(0)
    if FAULT == "half a result":
        target.write_text('{"completed": 4, "total_token_thr')
        raise SystemExit(0)


async def one(args, gate, index):
    async with gate:
        body = {"prompt": "w", "max_tokens": args.random_output_len, "seed": args.seed + index}
        request = urllib.request.Request(
            f"{args.base_url or f'http://127.0.0.1:{args.port}'}/v1/completions",
            json.dumps(body).encode(),
            {"X": "1"},
        )
        began = time.perf_counter()
        await asyncio.to_thread(lambda: urllib.request.urlopen(request, timeout=30).read())
        return time.perf_counter() - began


def result(args, took, duration):
    count, per_request = len(took), args.random_input_len + args.random_output_len
    mean_ms = 1000 * sum(took) / count
    return {
        "model_id": args.model,
        "num_prompts": count,
        "request_rate": "inf",
        "max_concurrency": args.max_concurrency,
        "duration": duration,
        "completed": count,
        "failed": 0,
        "total_input_tokens": count * args.random_input_len,
        "total_output_tokens": count * args.random_output_len,
        "request_throughput": count / duration,
        "output_throughput": count * args.random_output_len / duration,
        "total_token_throughput": count * per_request / duration,
        "mean_ttft_ms": mean_ms,
        "mean_tpot_ms": mean_ms / args.random_output_len,
        "mean_itl_ms": mean_ms / args.random_output_len,
        "header": args.header,
    }
