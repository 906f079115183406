"""The tour for a user who may not write to the checkout: a folder with a space, an empty HOME, --out elsewhere."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(560)]

USER = 61234
MAIN = "import sys; from latent_moe.cli import main; sys.exit(main())"
IGNORED = shutil.ignore_patterns("__pycache__", "runs", ".ipynb_checkpoints")


@pytest.fixture(scope="module")
def place(repository):
    """A folder that all may enter: `my checkout` belongs to root, `home` (empty) and `elsewhere` to the user."""
    if os.getuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("only root can become a user without write access (and needs setpriv)")
    top = Path(tempfile.mkdtemp(prefix="latent_moe_read_only_"))
    for name in ("latent_moe", "notebooks"):
        shutil.copytree(repository / name, top / "my checkout" / name, ignore=IGNORED)
    shutil.copytree(repository / "profiles", top / "my checkout" / "profiles")
    for name in ("home", "elsewhere"):
        (top / name).mkdir()
        os.chown(top / name, USER, USER)
    subprocess.run(["chmod", "-R", "a+rX,go-w", top], check=True)
    yield top
    shutil.rmtree(top)


def _as_user(place, *words):
    """Run a command as the user, with nothing of this environment but PATH."""
    become = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
    probe = [*become, sys.executable, "-c", "import os; print(os.__file__)"]
    if subprocess.run(probe, capture_output=True, text=True).stdout.strip() != os.__file__:
        # This interpreter's library lies in root's own folders (and another version's may lie at hand, which would
        # be taken silently): the user may read root's files, and writes no more than before.
        become += ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
    env = {"PATH": os.environ["PATH"], "HOME": str(place / "home"), "PYTHONPATH": str(place / "my checkout")}
    return subprocess.run(
        [*become, *words], env=env, cwd=place / "my checkout", capture_output=True, text=True, timeout=500
    )


def _files(folder):
    return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in sorted(folder.rglob("*"))}


def test_the_tour_writes_elsewhere_only(place):
    assert _as_user(place, "touch", "probe").returncode != 0
    checkout, out = place / "my checkout", place / "elsewhere" / "a tour"
    before = _files(checkout)
    done = _as_user(
        place, sys.executable, "-c", MAIN, "tour", "--json", "--only", "01", "04", "--out", str(out)
    )
    assert done.returncode == 0, done.stderr[-3000:]
    summary = json.loads(done.stdout.splitlines()[-1])
    assert [one["ok"] for one in summary["notebooks"]] == [True, True]
    assert Path(summary["index"]) == out / "index.html"
    assert (out / "index.html").stat().st_uid == USER
    assert _files(checkout) == before
    assert "Traceback" not in done.stderr


def test_without_out_it_says_what_to_do(place):
    before = _files(place / "my checkout")
    done = _as_user(place, sys.executable, "-c", MAIN, "tour", "--only", "04")
    assert done.returncode == 2
    [line] = done.stderr.strip().splitlines()
    assert "cannot be written" in line
    assert "--out" in line
    assert _files(place / "my checkout") == before
