"""Every flag of every shipped recipe parses in the installed vLLM: its own parsers take the plans' words."""

import json
import subprocess
import sys

import pytest

from latent_moe.lab.bench.recipe import load_recipe, recipe_names
from latent_moe.lab.bench.resolve import resolve

PARSE = """
import json, sys
from vllm.benchmarks.serve import add_cli_args
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
server = make_arg_parser(FlexibleArgumentParser())
client = FlexibleArgumentParser()
add_cli_args(client)
answers = []
for kind, words in json.load(sys.stdin):
    parser = server if kind == "server" else client
    try:
        args = vars(parser.parse_args(words))
        answers.append({"ranks": args.get("tensor_parallel_size"), "seed": args.get("seed")})
    except SystemExit:
        answers.append(None)
print(json.dumps(answers))
"""


def arguments(words: list[str]) -> list[str]:
    """What vLLM's parser sees: without the words that find the program."""
    if "-m" in words[:2]:
        return words[3:]
    return words[2:] if words[1] == "serve" else words[3:]


@pytest.mark.vllm
@pytest.mark.timeout(300)
def test_every_flag_of_every_recipe_parses_in_the_installed_vllm(monkeypatch):
    pytest.importorskip("vllm")
    asked, names = [], []
    for name in recipe_names():
        for entry in resolve(load_recipe(name).with_pairs(1), "OUT").sessions:
            asked.append(("server", arguments(entry.server.all_words)))
            asked += [("client", arguments(run.command.all_words)) for run in entry.runs]
            names += [f"{name}: {entry.arm}"] * (1 + len(entry.runs))
    done = subprocess.run(
        [sys.executable, "-c", PARSE], input=json.dumps(asked), capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answers = json.loads(done.stdout.splitlines()[-1])
    refused = {
        name: words for name, words, answer in zip(names, asked, answers, strict=True) if answer is None
    }
    assert refused == {}, done.stderr[-2000:]
    assert {
        answer["ranks"] for answer, (kind, _) in zip(answers, asked, strict=True) if kind == "server"
    } == {1, 2, 8}
