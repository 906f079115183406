"""One short run of one arm under a profiler: rocprofv3 around the server, or vLLM's own torch profiler inside it."""

import json
import shutil
from pathlib import Path

import msgspec

from latent_moe.errors import InputError, LatentMoEError
from latent_moe.platform import describe
from latent_moe.serving import bench, plan
from latent_moe.serving.boot import BootRun
from latent_moe.serving.commands import environment, interpreter
from latent_moe.serving.model_dir import model_config, write_model
from latent_moe.serving.progress import Meter, Notify
from latent_moe.serving.recipe import Recipe

_SHORT_OSL = 8


def profiler() -> str:
    """rocprofv3 on ROCm where it is on the PATH, else torch."""
    return "rocprofv3" if describe().kind == "rocm" and shutil.which("rocprofv3") else "torch"


def trace(recipe: Recipe, arm: str, out: str | Path | None, notify: Notify) -> Path:
    """Serve `arm` once at the recipe's first concurrency, with few tokens, traced; returns the folder, whose traces/<arm>/
    `latent-moe kernels` and `compare` read. The run's times are those of a profiled server: not for the table.

    Raises InputError for an unknown arm, LatentMoEError when no trace was written.
    """
    if arm not in recipe.arms:
        raise InputError(f"{recipe.name} has no arm {arm!r} (there are: {', '.join(recipe.arms)})")
    if not recipe.client.concurrencies:
        raise InputError(f"{recipe.name} drives no client: nothing to profile")
    folder = Path(out) if out else bench.default_folder(recipe)
    target = (folder / "traces" / arm).resolve()
    if target.exists() and any(target.iterdir()):
        raise InputError(f"{target} holds traces already")
    target.mkdir(parents=True, exist_ok=True)
    short = shortened(recipe, arm, target)
    if recipe.model.preset:
        write_model(folder / recipe.model.preset, model_config(recipe.model.preset, recipe.model.changes))
    _boot(short, folder, arm, target, notify)
    found = [path for path in target.rglob("*") if path.is_file()]
    if not found:
        raise LatentMoEError(f"the profiler wrote no trace into {target}")
    return folder


def shortened(recipe: Recipe, arm: str, target: Path) -> Recipe:
    """The recipe with one arm's one short run, and what the profiler needs."""
    client = msgspec.structs.replace(
        recipe.client,
        osl=min(_SHORT_OSL, recipe.client.osl),
        concurrencies=recipe.client.concurrencies[:1],
        prompts_per_concurrency=1,
        args=[*recipe.client.args, *(["--profile"] if profiler() == "torch" else [])],
    )
    server = recipe.server
    if profiler() == "torch":
        setting = json.dumps(
            {"profiler": "torch", "torch_profiler_dir": str(target), "torch_profiler_with_stack": False}
        )
        server = msgspec.structs.replace(server, args=[*server.args, "--profiler-config", setting])
    arms = {arm: recipe.arms[arm]}
    return msgspec.structs.replace(
        recipe, client=client, server=server, arms=arms, pairs=1, parity=None, accuracy=None
    )


def wrapper(target: Path) -> list[str]:
    """The words before the server's command: rocprofv3's, or none."""
    if profiler() == "torch":
        return []
    return [
        "rocprofv3",
        "--kernel-trace",
        "--marker-trace",
        "--output-format",
        "csv",
        "json",
        "-d",
        str(target),
        "--",
    ]


def _boot(recipe: Recipe, folder: Path, arm: str, target: Path, notify: Notify) -> None:
    boot = plan.Boot(arm, 1, 0, False)
    python = interpreter(recipe.arms[arm], environment())
    meter = Meter(notify, {"boot": 1, "run": 1})
    run = BootRun(
        recipe, folder / "traces" / "run", boot, python, "profiled", bench.new_identity(boot), meter
    )
    run.wrapper = wrapper(target)
    run.cwd = folder
    try:
        run.run()
    finally:
        run.stop()
