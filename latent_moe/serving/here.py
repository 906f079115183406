"""What notebook 05 shows: a run on this machine where vLLM imports, else the recorded run on two H200."""

import subprocess
import sys
from pathlib import Path

from latent_moe.errors import LatentMoEError
from latent_moe.profiles import profile_path

RECORDED = "h200x2_vllm"
RECIPES = {"cpu": "cpu_quick", "cuda": "gpu_single", "rocm": "mi355x_one_build"}


def vllm_imports(timeout_s: float = 120) -> bool:
    """Whether `import vllm` works, in a process of its own: an import that fails must not harm this one.

    Raises LatentMoEError when the import does not end in `timeout_s`.
    """
    words = [sys.executable, "-c", "import vllm"]
    try:
        return subprocess.run(words, capture_output=True, timeout=timeout_s).returncode == 0
    except subprocess.TimeoutExpired:
        raise LatentMoEError(f"import vllm did not end within {timeout_s:g} s") from None


def measure(recipe: str, out: Path) -> Path:
    """The folder with both arms' runs: `recipe` run into `out`, or the recorded one where vLLM does not import.

    A server or client that fails raises (`bench.run`): the recorded result never stands in for a failed run.
    """
    if not vllm_imports():
        return profile_path(RECORDED)
    from latent_moe.serving import bench

    return bench.run(recipe, out)
