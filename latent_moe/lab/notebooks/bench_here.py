"""What notebook 05 shows: a run on this machine where vLLM imports and a cell is long enough for it, else the recorded
run on two H200 and the command that makes one here."""

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from latent_moe.errors import LatentMoEError
from latent_moe.lab.recordings import profile_path
from latent_moe.lab.results import read_results, render
from latent_moe.lab.results.comparison import compare

if TYPE_CHECKING:
    import pandas as pd

RECORDED = "h200x2_vllm"
RECIPES = {"cpu": "cpu_quick", "cuda": "gpu_single", "rocm": "mi355x_one_build"}
# The tour ends a cell after this; a half-done benchmark would be lost with it.
CELL_LIMIT_S = 480
# What recipes need in all, for those known to be short (cpu_quick's aim on two cores). The others start large models
# several times: minutes to hours, by machine.
NEEDS_S = {"cpu_quick": 240}


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
    """The folder with both arms' runs: `recipe` run into `out`, or the recorded one where that cannot be done in a cell.

    Why the recorded one is shown, and how to run the recipe, is printed. A server or client that fails raises
    (`bench.run`): the recorded result never stands in for a failed run.
    """
    if (reason := why_not(recipe)) is not None:
        print(f"{reason}; shown is profiles/{RECORDED}")
        return profile_path(RECORDED)
    from latent_moe.lab.bench import bench

    return bench.run(recipe, out)


def why_not(recipe: str) -> str | None:
    """Why `recipe` is not run in a notebook's cell here, with what to do instead; None where it is."""
    needs = NEEDS_S.get(recipe)
    if needs is None or needs > CELL_LIMIT_S:
        return (
            f"{recipe} takes longer than the {CELL_LIMIT_S // 60} minutes of a cell: run `latent-moe bench {recipe} "
            "--out DIR` in a terminal, then set `results` to that folder"
        )
    return None if vllm_imports() else "vLLM does not import here (`latent-moe doctor` says why)"


def recorded(name: str, candidate: str | None = None) -> "pd.DataFrame":
    """The comparison in the recording profiles/`name`, for its figures; `candidate` where there are several."""
    return render.frame(compare(read_results([profile_path(name)]), candidate=candidate))
