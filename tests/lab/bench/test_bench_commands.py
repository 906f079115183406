"""What `bench` would run: the pull request's commands to the letter, and no secret in anything that is shown."""

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from latent_moe.cli import main
from latent_moe.config import PRESETS
from latent_moe.errors import InputError
from latent_moe.lab.bench.model_dir import SERVED, fingerprint, model_config
from latent_moe.lab.bench.recipe import load_recipe, recipe_names
from latent_moe.lab.bench.resolve import resolve, tp_size
from latent_moe.lab.secrets import hide, secret_values

SERVER = (
    "VLLM_ROCM_USE_AITER=1 vllm serve moonshotai/Kimi-K3 --tensor-parallel-size 8 --trust-remote-code --kv-cache-dtype fp8 "
    "--max-model-len 16384 --max-num-seqs 128 --max-num-batched-tokens 16384 --gpu-memory-utilization 0.93 --block-size 128 "
    '--no-enable-prefix-caching --compilation-config \'{"custom_ops":["+fused_rms_norm_gated"]}\' --enable-auto-tool-choice '
    "--tool-call-parser kimi_k3 --reasoning-parser kimi_k3"
)
CLIENT = (
    "vllm bench serve --model moonshotai/Kimi-K3 --trust-remote-code --dataset-name random --random-input-len 8192 "
    "--random-output-len 1024 --ignore-eos --num-prompts {prompts} --max-concurrency {concurrency}"
)
ACCURACY = (
    "lm_eval --model local-completions --model_args model=moonshotai/Kimi-K3,base_url=http://127.0.0.1:8000/v1/completions,"
    "num_concurrent=64,max_retries=3,tokenized_requests=False,trust_remote_code=True --tasks gsm8k --num_fewshot 5 --seed 42"
)


@pytest.fixture(autouse=True)
def _no_builds(monkeypatch):
    monkeypatch.delenv("PR51253_BEFORE_PYTHON", raising=False)
    monkeypatch.delenv("PR51253_AFTER_PYTHON", raising=False)


def of_kind(recipe: str, kind: str) -> Iterator[dict]:
    """The commands of one pair."""
    plan = resolve(load_recipe(recipe).with_pairs(1), "OUT")
    return (item for item in plan.as_json()["commands"] if item["kind"] == kind)


def test_the_pull_requests_server_and_client_word_for_word():
    assert [item["command"] for item in of_kind("mi355x_pr51253", "server")] == [SERVER, SERVER]
    clients = [item["command"] for item in of_kind("mi355x_pr51253", "client")]
    expected = [CLIENT.format(prompts=4 * c, concurrency=c) for c in (8, 16, 32, 64, 128)]
    assert clients == expected * 2


def test_the_accuracy_step_word_for_word_and_its_disagreement_named():
    items = list(of_kind("mi355x_pr51253_gsm8k", "accuracy"))
    assert [item["command"] for item in items] == [ACCURACY, ACCURACY]
    assert "20-shot" in items[0]["note"]


def test_one_build_differs_between_arms_by_the_tail_alone():
    left, right = of_kind("mi355x_one_build", "server")
    assert left["command"].replace("LATENT_MOE_TAIL=replicated", "T") == right["command"].replace(
        "LATENT_MOE_TAIL=column_parallel", "T"
    )
    assert SERVER.removeprefix("VLLM_ROCM_USE_AITER=1 ") in left["command"]


def test_two_builds_use_each_arms_own_vllm(monkeypatch, tmp_path):
    for name in ("before", "after"):
        python = tmp_path / name / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.touch()
        monkeypatch.setenv(f"PR51253_{name.upper()}_PYTHON", str(python))
    servers = [item["command"] for item in of_kind("mi355x_pr51253", "server")]
    assert [
        f"{tmp_path}/{name}/bin/vllm serve" in line
        for name, line in zip(("before", "after"), servers, strict=True)
    ] == [
        True,
        True,
    ]


@pytest.mark.parametrize("name", recipe_names())
def test_every_shipped_recipe_reads_and_prints(name):
    recipe = load_recipe(name)
    assert recipe.name == name
    plan = resolve(recipe, "OUT")
    lines = plan.text().splitlines()
    assert all(item["command"] in lines for item in plan.as_json()["commands"])


def test_arms_alternate_and_seeds_are_equal_within_a_pair_only():
    recipe = load_recipe("gpu_pair")
    sessions = resolve(recipe, "OUT").sessions
    order = [session.arm for session in sessions]
    assert order == [
        "replicated",
        "column_parallel",
        "column_parallel",
        "replicated",
        "replicated",
        "column_parallel",
    ]
    seeds = {(session.pair, run.concurrency): run.seed for session in sessions for run in session.measured}
    assert len(set(seeds.values())) == len(seeds) == 6
    assert all(
        seeds[session.pair, run.concurrency] == run.seed for session in sessions for run in session.measured
    )


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('role = "candidate"', 'role = "baseline"', "exactly one arm"),
        ("pairs = 4", "pairs = 0", "pairs"),
        ("pairs = 4", "pairs = 1000000000", "pairs"),
        ("pairs = 4", "pairs = 4\nseed = -1", "seed"),
        ("pairs = 4", "pairs = 4\nseed = 20261130", "seed"),
        ('preset = "cpu"', 'preset = "cpu"\nchanges = { hidden_size = "x" }', "hidden_size must be"),
        ("[arms.replicated]", '[arms.".."]', "cannot be a name"),
        ('env = { LATENT_MOE_TAIL = "replicated" }', "", "env says no LATENT_MOE_TAIL"),
        ('"replicated" }', '"column-parallel" }', "there are: replicated"),
        ("[server]", "[server]\nport = 9000", "vLLM listens on 8000"),
        ("isl = 128", "isl = 1009", "do not fit --max-model-len 1024"),
        ("[server]", "[server]\nport = 8000\nstandby = true", "two servers at a time"),
        ('name = "cpu_demo"\n', 'extends = "cpu_quick"\n', "a name of its own"),
        ("isl = 128", "isl = 128\nunknown = 3", "unknown"),
        ('preset = "cpu"', 'preset = "cpux"', "unknown model 'cpux'"),
        ("concurrencies = [4]", "concurrencies = [4, 4]", "twice"),
        ("[client]", "[client", "not a recipe"),
    ],
)
def test_a_bad_recipe_is_one_line_with_file_and_fault(tmp_path, repository, old, new, said):
    path = tmp_path / "bad.toml"
    good = (repository / "latent_moe/lab/bench/recipes/cpu_demo.toml").read_text()
    assert old in good
    path.write_text(good.replace(old, new))
    with pytest.raises(InputError, match=said) as caught:
        load_recipe(path)
    assert str(path) in str(caught.value)


def test_a_recipe_extends_another_by_name_or_file(tmp_path):
    (tmp_path / "longer.toml").write_text(
        'extends = "cpu_demo"\nname = "longer"\ntitle = "x"\n[client]\nisl = 512\n'
    )
    (tmp_path / "twice.toml").write_text('extends = "longer.toml"\nname = "twice"\ntitle = "x"\npairs = 8\n')
    demo, twice = load_recipe("cpu_demo"), load_recipe(tmp_path / "twice.toml")
    assert (twice.name, twice.pairs, twice.client.isl) == ("twice", 8, 512)
    assert twice.client.osl == demo.client.osl
    assert (twice.server, twice.arms) == (demo.server, demo.arms)
    (tmp_path / "env.toml").write_text(
        'extends = "cpu_demo"\nname = "env"\ntitle = "x"\n[server.env]\nA = "1"\n'
    )
    assert load_recipe(tmp_path / "env.toml").server.env == {**demo.server.env, "A": "1"}
    other = '[arms.a]\nrole = "baseline"\nenv.LATENT_MOE_TAIL = "replicated"\n'
    other += '[arms.b]\nrole = "candidate"\nenv.LATENT_MOE_TAIL = "auto"\n'
    (tmp_path / "arms.toml").write_text('extends = "cpu_demo"\nname = "arms"\ntitle = "x"\n' + other)
    assert list(load_recipe(tmp_path / "arms.toml").arms) == ["a", "b"]


@pytest.mark.parametrize(
    ("base", "said"),
    [
        ('"own.toml"', "own.toml: extends 'own.toml'.*extends itself"),
        ('"bad.toml"', "own.toml: extends 'bad.toml'.*not a recipe"),
        ('"nowhere"', "unknown recipe"),
        ("3", "extends must be"),
        ('"."', "unknown recipe"),
    ],
)
def test_a_base_that_cannot_be_had(tmp_path, base, said):
    own = tmp_path / "own.toml"
    (tmp_path / "bad.toml").write_text("pairs = ")
    own.write_text(f'extends = {base}\nname = "own"\ntitle = "x"\n')
    with pytest.raises(InputError, match=said):
        load_recipe(own)


@pytest.mark.parametrize("pairs", ["0", "-5", "99999999999"])
def test_a_number_of_pairs_that_cannot_be_is_refused_in_a_dry_run_too(capsys, pairs):
    assert main(["bench", "cpu_demo", "--dry-run", "--pairs", pairs]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_dry_run_shows_the_pairs_asked_for(capsys):
    assert main(["bench", "cpu_demo", "--dry-run", "--pairs", "1"]) == 0
    (order,) = [
        line for line in capsys.readouterr().out.splitlines() if line.startswith("# sessions in order")
    ]
    assert order.split(":")[1].split() == ["replicated", "column_parallel"]


def test_dry_run_shows_no_token_of_an_arm(tmp_path, repository, monkeypatch):
    monkeypatch.setenv("MY_SITE_PASS", "from-the-shell-1234")
    text_in = (repository / "latent_moe/lab/bench/recipes/cpu_demo.toml").read_text()
    assert 'env = { LATENT_MOE_TAIL = "replicated" }' in text_in
    path = tmp_path / "tokens.toml"
    path.write_text(
        text_in.replace(
            'env = { LATENT_MOE_TAIL = "replicated" }',
            'env = { LATENT_MOE_TAIL = "replicated", HF_TOKEN = "hf_written_here", SITE = "${MY_SITE_PASS}" }\n'
            'args = ["--api-key", "key-in-arguments"]',
        )
    )
    done = subprocess.run(
        [sys.executable, "-m", "latent_moe", "bench", str(path), "--dry-run", "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout)["commands"]
    for secret in ("hf_written_here", "from-the-shell-1234", "key-in-arguments"):
        assert secret not in done.stdout + done.stderr


def test_secrets_are_found_by_name_reference_and_option(monkeypatch):
    monkeypatch.setenv("SITE_PASS_PHRASE", "phrase-1234")
    values = secret_values(
        {"HF_TOKEN": "hf_abcdef", "X": "${SITE_PASS_PHRASE}", "A": "plain"}, ["--api-key", "k-9876"]
    )
    assert {"hf_abcdef", "phrase-1234", "k-9876"} <= set(values)
    assert "plain" not in values
    assert hide("hf_abcdef and k-9876", values) == "*** and ***"


@pytest.mark.parametrize(
    ("words", "ranks"),
    [
        (["-tp", "4"], 4),
        (["--tp-size", "8"], 8),
        (["--tensor-parallel-size=2"], 2),
        (["--tensor-parallel-size", "2", "--tensor-parallel-size", "8"], 8),
        (["--tensor-parallel-size", "${TP}"], None),
        (["--tensor-parallel-size"], None),
        ([], None),
    ],
)
def test_ranks_are_read_from_the_servers_arguments(words, ranks):
    assert tp_size(words) == ranks


def test_a_served_model_is_a_preset_and_keeps_the_name_that_recorded_results_give_it():
    assert set(SERVED) <= set(PRESETS)
    recorded = {"cpu": "47ece5fc1d79", "k3_slice": "d202ff23d360", "k3_eight": "c1ffdce45f51"}
    assert {name: fingerprint(model_config(name)) for name in recorded} == recorded
    # Once two models were called tiny: a recipe that says so means the served one.
    assert model_config("tiny") == model_config("served_tiny")
    assert model_config("tiny")["hidden_size"] != PRESETS["tiny"].hidden_size


def test_the_servers_entry_is_the_one_that_the_arms_vllm_has(tmp_path):
    from latent_moe.lab.bench.commands import OLD_SERVER_MODULE, SERVER_MODULE, server_module

    python = tmp_path / "bin" / "python"
    assert server_module(str(python)) == SERVER_MODULE, "an unknown vLLM is taken for a current one"
    package = tmp_path / "lib" / "python3.12" / "site-packages" / "vllm"
    package.mkdir(parents=True)
    assert server_module(str(python)) == OLD_SERVER_MODULE
    entry = package / "entrypoints" / "launchers" / "api_server" / "entry.py"
    entry.parent.mkdir(parents=True)
    entry.touch()
    assert server_module(str(python)) == SERVER_MODULE


def test_the_follow_ups_of_the_change_have_recipes():
    under_ep = [item["command"] for item in of_kind("mi355x_pr54956", "server")]
    assert all(line.endswith("--enable-expert-parallel") and SERVER in line for line in under_ep)
    overlap = load_recipe("mi355x_pr51437")
    assert overlap.with_role("candidate") == ["after", "after_no_overlap"]
    assert overlap.arms["after_no_overlap"].env == {"VLLM_DISABLE_SHARED_EXPERTS_STREAM": "1"}
    assert all("--enable-expert-parallel" not in overlap.server_words(arm) for arm in overlap.arms)
