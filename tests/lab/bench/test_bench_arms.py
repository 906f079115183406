"""Arms that people really run: a container, a server that runs already, SGLang; and workloads beside random prompts."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from bench_driver import STAND_IN, bench, environment, one_line, result_files, write_recipe
from processes import wait_gone

from latent_moe.errors import InputError
from latent_moe.lab.bench.recipe import load_recipe
from latent_moe.lab.bench.resolve import resolve

# The runtime: starts the image's server with what --env names, as docker does, and ends it by the container's name.
RUNTIME = """
import json, os, signal, subprocess, sys
log, state = os.environ["RUNTIME_LOG"], os.environ["RUNTIME_STATE"]
verb, *words = sys.argv[1:]
with open(log, "a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")
if verb == "rm":
    try:
        with open(os.path.join(state, words[-1])) as file:
            os.kill(int(file.read()), signal.SIGKILL)
    except (OSError, ValueError):
        pass
    sys.exit(0)
kept = {"PYTHONUNBUFFERED": "1"}
kept |= {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "LATENT_MOE_TEST_MARK") if name in os.environ}
while words[0].startswith("-"):
    option, words = words[0], words[1:]
    if option in ("--rm",):
        continue
    value, words = words[0], words[1:]
    if option == "--env":
        kept[value] = os.environ[value]
    elif option == "--name":
        name = value
    elif option == "--workdir":
        os.chdir(value)
    elif option == "--entrypoint":
        assert value == "vllm"
image, serve, *rest = words
assert (image, serve) == ("registry/vllm:1", "serve"), words
# A daemon's child: it goes on when the one who asked for it is killed.
child = subprocess.Popen(
    [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *rest[1:]], env=kept, start_new_session=True
)
with open(os.path.join(state, name), "w") as file:
    file.write(str(child.pid))
signal.signal(signal.SIGTERM, lambda *_: child.terminate())
sys.exit(child.wait())
"""


@pytest.fixture
def docker(tmp_path, monkeypatch):
    """A stand-in for docker on the PATH; gives the environment and the file of what it was asked."""
    tool = tmp_path / "bin" / "docker"
    tool.parent.mkdir()
    tool.write_text(f"#!{sys.executable}\n{RUNTIME}")
    tool.chmod(0o755)
    (tmp_path / "state").mkdir()
    env = {"RUNTIME_LOG": str(tmp_path / "asked"), "RUNTIME_STATE": str(tmp_path / "state")}
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    return env, tmp_path / "asked"


def in_image(tmp_path, arm: str = "two"):
    recipe = write_recipe(tmp_path)
    text = recipe.read_text()
    end = text.index(f"[arms.{arm}]") + len(f"[arms.{arm}]")
    more = 'image = "registry/vllm:1"\ncontainer_args = ["--ulimit", "core=0"]\n'
    recipe.write_text(f"{text[:end]}\n{more}{text[end:].lstrip()}")
    return recipe


def test_an_arm_in_a_container(tmp_path, docker):
    env, asked = docker
    recipe, out, mark = in_image(tmp_path), tmp_path / "out", f"image-{os.getpid()}"
    text = recipe.read_text().replace(
        '"column_parallel"', '"column_parallel", HF_TOKEN = "hf_secret0123456789"'
    )
    recipe.write_text(text)
    done = bench(recipe, out, mark=mark, **env)
    assert done.returncode == 0, done.stderr
    start, end = [json.loads(line) for line in asked.read_text().splitlines()]
    name = start[start.index("--name") + 1]
    assert start[:6] == ["run", "--rm", "--name", name, "--network", "host"]
    assert start[start.index("--volume") + 1] == f"{out}:{out}"
    assert start[start.index("--workdir") + 1] == str(out)
    assert [start[i + 1] for i, word in enumerate(start) if word == "--env"] == [
        "LATENT_MOE_TAIL",
        "HF_TOKEN",
    ]
    assert "hf_secret0123456789" not in start, "a token stands in no list of processes"
    entry = start.index("--entrypoint")
    assert start[entry - 2 : entry] == ["--ulimit", "core=0"]
    assert start[entry : entry + 5] == ["--entrypoint", "vllm", "registry/vllm:1", "serve", "served_tiny"]
    assert end == ["rm", "--force", name]
    assert len(result_files(out)) == 4
    assert wait_gone(mark, 5) == []


def test_a_container_goes_with_the_command_that_is_killed(tmp_path, docker):
    env, asked = docker
    recipe, out, mark = in_image(tmp_path, "one"), tmp_path / "out", f"killed-{os.getpid()}"
    words = [sys.executable, "-m", "latent_moe", "bench", str(recipe), "--out", str(out)]
    env = environment(mark, STAND_IN_CLIENT="slow", **env)
    process = subprocess.Popen(words, env=env, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not list(out.glob("logs/*/client_jobs.done0")) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.kill()
    process.wait()
    assert wait_gone(mark) == []
    assert [json.loads(line)[0] for line in asked.read_text().splitlines()] == ["run", "rm"]


@pytest.mark.parametrize("kind", ["rocm", "cuda"])
def test_a_container_gets_the_machines_devices(tmp_path, docker, monkeypatch, kind):
    from types import SimpleNamespace

    from latent_moe.lab.bench import resolve as resolving

    here = SimpleNamespace(kind=kind, device_name="GPU", device_count=1)
    monkeypatch.setattr(resolving, "describe", lambda: here)
    plan = resolve(load_recipe(in_image(tmp_path)), tmp_path / "out")
    (entry,) = [each for each in plan.sessions if each.arm == "two"]
    words = " ".join(entry.server.words)
    wanted = {"rocm": "--device /dev/kfd --device /dev/dri --group-add video", "cuda": "--gpus all"}
    assert wanted[kind] in words


@pytest.fixture
def endpoint(tmp_path):
    """A server that runs already: nobody of bench started it."""
    env = {**os.environ, "PYTHONPATH": str(STAND_IN), "STAND_IN_VERSION": "0.99.0"}
    from latent_moe.lab.bench.machine import free_ports

    port = free_ports(1)[0] + 500
    words = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--port", str(port)]
    with subprocess.Popen(words, env=env, stdout=subprocess.DEVNULL) as process:
        yield f"http://127.0.0.1:{port}", process
        process.terminate()
        process.wait(10)


URL_RECIPE = """
name = "urls"
title = "A server that runs already against one that is started"
pairs = 2
[model]
name = "some/model"
[server]
startup_timeout_s = 30
[client]
isl = 8
osl = 4
concurrencies = [2]
prompts_per_concurrency = 2
[parity]
count = 1
length = 4
max_tokens = 2
[arms.started]
role = "baseline"
[arms.running]
role = "candidate"
url = "{url}/"
"""


def test_an_endpoint_is_measured_and_left_alone(tmp_path, endpoint):
    url, process = endpoint
    (tmp_path / "urls.toml").write_text(URL_RECIPE.format(url=url))
    out, mark = tmp_path / "out", f"url-{os.getpid()}"
    done = bench(tmp_path / "urls.toml", out, mark=mark)
    assert done.returncode == 0, done.stderr
    ours = [json.loads(text)["latent_moe"] for text in result_files(out).values()]
    versions = {run["arm"]: run["vllm_version"] for run in ours}
    assert versions == {"started": "0.32.0", "running": "0.99.0"}
    assert process.poll() is None, "it was not ours to end"
    assert (out / "parity" / "running.json").is_file()
    assert list(out.glob("logs/*running*/server.log")) == []
    assert wait_gone(mark, 5) == []
    dry = bench(tmp_path / "urls.toml", out, "--dry-run", "--resume", "--pairs", "3", "--json", mark="unused")
    commands = json.loads(dry.stdout)["commands"]
    assert [each["kind"] for each in commands if each["arm"] == "running"] == ["warmup", "client"]
    assert all(f"--base-url {url}" in each["added"] for each in commands if each["arm"] == "running")


def test_an_endpoint_that_does_not_answer_is_one_line(tmp_path):
    text = URL_RECIPE.format(url="http://127.0.0.1:9").replace(
        "startup_timeout_s = 30", "startup_timeout_s = 1"
    )
    (tmp_path / "urls.toml").write_text(text)
    done = bench(tmp_path / "urls.toml", tmp_path / "out", mark=f"silent-{os.getpid()}")
    assert done.returncode == 1
    assert "server running was not ready within 1 s" in one_line(done)


def test_sglang_is_started_by_its_own_words_and_driven_by_vllms_client(tmp_path, fixtures):
    published = set(
        json.loads((fixtures / "bench" / "sglang_server_arguments.json").read_text())["arguments"]
    )
    path = tmp_path / "engines.toml"
    path.write_text(ENGINES)
    plan = resolve(load_recipe(path), tmp_path / "out")
    entry = next(each for each in plan.sessions if each.arm == "sglang")
    assert entry.server.words[1:5] == ["-m", "sglang.launch_server", "--model-path", "moonshotai/Kimi-K3"]
    options = [word.partition("=")[0] for word in entry.server.all_words if word.startswith("--")]
    assert set(options) <= published, "an argument that SGLang does not have"
    assert "--max-num-seqs" not in options, "vLLM's arguments are not SGLang's"
    assert "VLLM_ROCM_USE_AITER" not in entry.server.env
    assert entry.runs[0].command.words[1:3] == ["-m", "latent_moe.lab.bench.client"]
    assert entry.measured[0].record["prefix_caching"] is False


ENGINES = """
name = "engines"
title = "vLLM against SGLang"
[model]
name = "moonshotai/Kimi-K3"
[server]
args = ["--tensor-parallel-size", "8", "--max-num-seqs", "128"]
env = { VLLM_ROCM_USE_AITER = "1" }
[client]
concurrencies = [8]
[arms.vllm]
role = "baseline"
[arms.sglang]
role = "candidate"
engine = "sglang"
args = ["--tp-size", "8", "--trust-remote-code", "--mem-fraction-static", "0.9", "--disable-radix-cache"]
env = { SGLANG_USE_AITER = "1" }
"""


@pytest.mark.parametrize(
    ("dataset", "rows", "option"),
    [
        (
            "sharegpt",
            json.dumps([{"conversations": [{"value": "a"}, {"value": "b"}]}]),
            "--sharegpt-output-len",
        ),
        ("custom", '{"prompt": "hello"}\\n', "--custom-output-len"),
    ],
)
def test_prompts_from_a_local_file_at_a_request_rate(tmp_path, dataset, rows, option):
    recipe = write_recipe(tmp_path)
    more = f'dataset = "{dataset}"\ndataset_path = "prompts.json"\nrequest_rate = 2.5\n'
    recipe.write_text(recipe.read_text().replace("[client]\n", f"[client]\n{more}"))
    done = bench(recipe, tmp_path / "out", mark="unused")
    assert done.returncode == 2
    assert f"the dataset {tmp_path}/prompts.json does not exist" in one_line(done)
    (tmp_path / "prompts.json").write_text(rows)
    plan = resolve(load_recipe(recipe), tmp_path / "out")
    words = plan.sessions[0].runs[-1].command.words
    assert words[words.index("--dataset-name") + 1] == dataset
    assert words[words.index("--dataset-path") + 1] == str(tmp_path / "prompts.json")
    assert words[words.index(option) + 1] == "4"
    assert words[words.index("--request-rate") + 1] == "2.5"
    assert "--random-input-len" not in words
    record = plan.sessions[0].measured[0].record
    assert (record["isl"], record["osl"], record["dataset"], len(record["dataset_sha256"])) == (
        None,
        4,
        dataset,
        64,
    )


@pytest.mark.parametrize(
    "words",
    ['"--max-concurrency", "64"', '"--num-prompts=1000"', '"--dataset-name", "sharegpt"', '"--request_rate", "4"',
     '"--max-conc", "1"', '"--seed", "1"'],
)  # fmt: skip
def test_what_the_recipe_sets_the_clients_arguments_do_not_replace(tmp_path, words):
    done = bench(
        write_recipe(tmp_path, client_args=f", {words}"), tmp_path / "out", "--dry-run", mark="unused"
    )
    assert done.returncode == 2
    assert "which bench sets itself" in one_line(done)


def test_the_shared_case_of_overridden_arguments(shared, capsys):
    from latent_moe.cli import main

    case = shared / "cases" / "results" / "40-client-args-overridden.d" / "coll.toml"
    assert main(["bench", str(case), "--dry-run"]) == 2
    assert "--max-concurrency, which bench sets itself" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ('url = "http://x"\nimage = "y"', "in one place"),
        ('url = "localhost:8000"', "must begin with http"),
        ('url = "http://x"', "would be unused"),
        ('container_args = ["--x"]', "has no image"),
        ('engine = "sglang"', "cannot serve served_tiny"),
    ],
)
def test_an_arm_that_cannot_be_is_one_line(tmp_path, more, message):
    recipe = write_recipe(tmp_path)
    recipe.write_text(recipe.read_text().replace("[arms.two]\n", f"[arms.two]\n{more}\n"))
    with pytest.raises(InputError, match=message):
        load_recipe(recipe)


def test_a_folder_is_where_the_dataset_of_a_recipe_lies(tmp_path):
    base, child = tmp_path / "base", tmp_path / "child"
    base.mkdir()
    child.mkdir()
    recipe = write_recipe(base)
    more = 'dataset = "custom"\ndataset_path = "p.jsonl"\n'
    recipe.write_text(recipe.read_text().replace("[client]\n", f"[client]\n{more}"))
    (child / "more.toml").write_text(f'extends = "{recipe}"\nname = "more"\ntitle = "x"\n')
    assert Path(load_recipe(child / "more.toml").client.dataset_path) == base / "p.jsonl"
