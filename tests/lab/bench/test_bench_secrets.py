"""Tokens of an arm lie nowhere in what a whole run leaves, whatever the server and the client print."""

import os

import pytest
from bench_driver import bench, result_files, write_recipe

from latent_moe.cli import main
from latent_moe.lab.secrets import hide, secret_values

SECRETS = {
    "a variable of an arm": "hf_secret0123456789",
    "taken from the shell": "from-the-shell-98765",
    "an option of the server": "key-of-the-server-1",
    "an option with =": "key-with-equals-22",
    "a login in a URL": "pass-in-a-url-333",
    "a query of a URL": "query-token-4444",
    "JSON of the server": "json-secret-55555",
    "a header of the client": "header-secret-666",
    "known by its form alone": "hf_nobodysaidso77777",
}


@pytest.fixture
def recipe(tmp_path):
    """A recipe with a token in every place that a person may put one."""
    s = dict(SECRETS)
    server = (
        f', "--api-key", "{s["an option of the server"]}", "--hf-token={s["an option with ="]}"'
        f', "--url", "https://me:{s["a login in a URL"]}@host/x?token={s["a query of a URL"]}&page=2"'
        f""", "--config", '{{"hub": {{"api_key": "{s["JSON of the server"]}"}}, "max_tokens": 77777}}'"""
        ', "--site", "${LM_TEST_SITE}"'
    )
    return write_recipe(
        tmp_path,
        server_args=server,
        client_args=f', "--header", "Authorization=Bearer {s["a header of the client"]}"',
        one_env=f', HF_TOKEN = "{s["a variable of an arm"]}", PLAIN = "{s["known by its form alone"]}"',
        two_env=', SITE = "${LM_TEST_SITE}", TOKENIZERS_PARALLELISM = "false"',
        more="[parity]\ncount = 1\nlength = 4\nmax_tokens = 3",
    )


def leaks(text: str) -> list[str]:
    return [place for place, secret in SECRETS.items() if secret in text]


def test_no_file_of_a_whole_run_holds_a_token(tmp_path, recipe, capsys):
    out = tmp_path / "out"
    shell = {"LM_TEST_SITE": SECRETS["taken from the shell"]}
    done = bench(recipe, out, "--json", mark=f"secret-{os.getpid()}", **shell)
    assert done.returncode == 0, done.stderr
    files = [path for path in out.rglob("*") if path.is_file()]
    assert {path.parent.name for path in files} >= {"runs", "parity", "state", "out"}
    found = {str(path): leaks(path.read_text(errors="replace")) for path in files}
    assert {path: places for path, places in found.items() if places} == {}
    assert leaks(done.stdout + done.stderr) == []
    assert main(["table", str(out), "--json"]) == 0
    assert leaks(capsys.readouterr().out) == []
    log = next(iter(out.glob("logs/*_one_*/server.log"))).read_text()
    assert "environment:" in log, "the stand-in prints everything: the log was not just empty"
    assert log.count("***") >= 8
    assert "77777}" in log, "what is no secret stays readable"
    assert "--header" in next(iter(out.glob("logs/*_one_*/client.log"))).read_text() or result_files(out)


def test_the_server_gets_what_the_log_hides(tmp_path, recipe):
    """Hiding is for files: a failing start proves that the server itself saw the shell's value."""
    recipe.write_text(
        recipe.read_text().replace('"--site", "${LM_TEST_SITE}"', '"--port", "${LM_TEST_SITE}"')
    )
    done = bench(recipe, tmp_path / "out", mark=f"expand-{os.getpid()}", LM_TEST_SITE="not-a-port-1")
    assert done.returncode == 1
    assert "invalid literal for int() with base 10: '***'" in done.stderr


def test_dry_run_prints_no_token(tmp_path, recipe):
    shell = {"LM_TEST_SITE": SECRETS["taken from the shell"]}
    for options in (["--dry-run"], ["--dry-run", "--json"]):
        done = bench(recipe, tmp_path / "out", *options, mark="unused", **shell)
        assert done.returncode == 0
        assert leaks(done.stdout + done.stderr) == []
        assert "${LM_TEST_SITE}" in done.stdout
        assert not (tmp_path / "out").exists()


def test_words_that_only_look_like_secrets_stay(monkeypatch):
    for name in [name for name in os.environ if "TOKEN" in name or "AUTH" in name]:
        monkeypatch.delenv(name)
    env = {"TOKENIZERS_PARALLELISM": "falsy", "MAX_TOKENS": "8192", "GIT_AUTHOR_NAME": "some body"}
    words = ["--max-num-batched-tokens=16384", '{"return_token_ids": 12345}', "tokenized_requests=Falsy"]
    text = "falsy 8192 some body 16384 12345 Falsy"
    assert hide(text, secret_values(env, words)) == text


def test_a_token_is_found_in_json_and_in_a_url_too():
    values = secret_values({"A_SECRET": 'quo"te &c'})
    assert hide('{"x": "quo\\"te &c"} ?t=quo%22te%20%26c', values) == '{"x": "***"} ?t=***'
