"""What cannot be opened, written or counted ends every verb alike: one line on standard error, exit 2."""

import json
import os
import subprocess
import sys

import pytest

from latent_moe.cli import main
from latent_moe.errors import InputError
from latent_moe.lab.bench.recipe import RECIPES, load_recipe
from latent_moe.lab.cost import predict
from latent_moe.lab.recordings import Manifest

GOOD = {"name": "x", "kind": "measured", "title": "x", "device": "x", "date": "2026-01-01"}


def said(capsys, *words):
    code = main(list(words))
    return code, capsys.readouterr().err.strip().splitlines()


@pytest.mark.parametrize(
    "error", [PermissionError(13, "Permission denied", "/usr/x"), OSError(28, "No space left")]
)
def test_an_error_of_the_system_is_one_line(capsys, monkeypatch, error):
    def fail(*_):
        raise error

    monkeypatch.setattr("latent_moe.cli._dispatch", fail)
    code, lines = said(capsys, "table", "x")
    assert code == 2
    assert len(lines) == 1
    assert error.strerror in lines[0]


def test_a_full_disk_behind_standard_output(tmp_path, repository):
    words = [sys.executable, "-m", "latent_moe", "table", str(repository / "profiles" / "mi355x_pr51253")]
    with open("/dev/full", "w") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, cwd=repository)
    assert done.returncode == 2
    assert done.stderr.strip() == "latent-moe: reading or writing failed: No space left on device"


def test_prompts_beyond_counting_are_refused_at_once():
    with pytest.raises(InputError, match="do not fit"):
        predict.steps_to_first_token(8, 10**11, 16384)


@pytest.mark.parametrize(
    ("field", "value"), [("parameters", 5), ("files", None), ("device", 5), ("software", [])]
)
def test_a_manifest_of_wrong_types(field, value):
    with pytest.raises(InputError, match=field):
        Manifest(**GOOD | {field: value})


def test_a_nested_manifest_and_a_timeout_that_is_no_number(tmp_path, capsys):
    (tmp_path / "manifest.json").write_text('{"name": ' + "[" * 100_000)
    assert said(capsys, "table", str(tmp_path))[0] == 2
    code, lines = said(capsys, "tour", "--timeout", "nan", "--out", str(tmp_path / "out"))
    assert (code, len(lines)) == (2, 1)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[server]", "[server]\nport = 70000", "server.port"),
        ("[server]", "[server]\nstartup_timeout_s = nan", "startup_timeout_s"),
        ("[server]", "[server]\nstartup_timeout_s = inf", "startup_timeout_s"),
        ("[client]", "[client]\ntimeout_s = -5", "timeout_s"),
        ("[client]", "[client]\nwarmup_prompts = -5", "warmup_prompts"),
        ("count = 8", "count = -1", "count"),
        ('HF_HUB_OFFLINE = "1"', '"A=B" = "1"', "environment variable"),
        ("[arms.replicated]", '[arms.replicated]\ninterpreter = ""', "interpreter"),
        ("[parity]", "[accuracy]\ncommand = []\n[parity]", "accuracy.command"),
    ],
)
def test_recipe_values_are_checked_when_read(tmp_path, old, new, message):
    text = (RECIPES / "cpu_demo.toml").read_text()
    assert old in text
    file = tmp_path / "r.toml"
    file.write_text(text.replace(old, new, 1))
    with pytest.raises(InputError, match=message):
        load_recipe(file)


def test_json_stays_json(capsys, repository):
    assert main(["predict", "--json"]) == 0
    json.loads(capsys.readouterr().out.strip().splitlines()[-1])


@pytest.mark.parametrize(
    ("verb", "package", "extra"),
    [("verify", "torch", "ranks"), ("tails", "torch", "ranks"), ("tour", "nbformat", "lab")],
)
def test_a_verb_whose_package_is_missing_says_how_to_have_it(verb, package, extra):
    code = f"import sys; sys.modules[{package!r}] = None; from latent_moe.cli import main; sys.exit(main([{verb!r}]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert f"needs the package {package}" in line
    assert f"latent-moe[{extra}]" in line


@pytest.mark.parametrize("option", [["--export"], ["--save"]])
def test_what_is_read_is_never_written_over(option, tmp_path, fixtures, capsys):
    trace = tmp_path / "a_kernel_trace.csv"
    trace.write_bytes((fixtures / "traces" / "sharded_kernel_trace.csv").read_bytes())
    before = trace.read_bytes()
    for read in (str(trace), str(tmp_path)):
        assert main(["kernels", read, *option, str(trace)]) == 2
        assert "would replace what is read" in capsys.readouterr().err
    assert main(["report", str(tmp_path), "-o", str(trace)]) == 2
    assert main(["report", str(trace), "-o", ""]) == 2
    assert trace.read_bytes() == before


@pytest.mark.parametrize("verb", [["kernels"], ["table"], ["advise", "--hardware", "mi355x", "--config"]])
def test_a_pipe_is_no_file_and_is_not_waited_for(verb, tmp_path, capsys):
    os.mkfifo(tmp_path / "pipe")
    assert main([*verb, str(tmp_path / "pipe")]) == 2
    assert "no regular file" in capsys.readouterr().err
