"""One short run of one arm under a profiler: rocprofv3 around the server, or vLLM's own torch profiler inside it."""

import json
import shutil
from pathlib import Path

import msgspec

from latent_moe.errors import InputError, LatentMoEError
from latent_moe.lab.bench import bench, run_files, schedule
from latent_moe.lab.bench.commands import check_programs, environment, interpreter
from latent_moe.lab.bench.model_dir import model_config, write_model
from latent_moe.lab.bench.progress import Meter, Notify
from latent_moe.lab.bench.recipe import Recipe
from latent_moe.lab.bench.session import BootRun, Tracing
from latent_moe.lab.bench.trace_files import trace_files, without_secrets
from latent_moe.platform import describe

_SHORT_OSL = 8
# rocprofv3 writes when the traced process ends, in that process: gigabytes for a large server.
ROCPROF_GRACE_S = 300


def profiler() -> str:
    """rocprofv3 on ROCm where it is on the PATH, else torch."""
    return "rocprofv3" if describe().kind == "rocm" and shutil.which("rocprofv3") else "torch"


def trace(recipe: Recipe, arm: str, out: str | Path | None, notify: Notify) -> Path:
    """Serve `arm` once at the recipe's first concurrency, with few tokens, traced; returns the folder traces/<arm>, which
    `latent-moe kernels` and `compare` read. The run's times are those of a profiled server: not for the table.

    vLLM's torch profiler records the measured requests alone; rocprofv3 the server's whole life, its start included. No
    secret of the recipe is left in a trace (rocprofv3's databases hold the whole environment).
    Raises InputError for an unknown arm, LatentMoEError when no trace was written.
    """
    if arm not in recipe.arms:
        raise InputError(f"{recipe.name} has no arm {arm!r} (there are: {', '.join(recipe.arms)})")
    if not recipe.client.concurrencies:
        raise InputError(f"{recipe.name} drives no client: nothing to profile")
    folder = Path(out) if out else bench.default_folder(recipe)
    target = (folder / "traces" / arm).resolve()
    _make_empty(target)
    if recipe.model.preset:
        write_model(folder / recipe.model.preset, model_config(recipe.model.preset, recipe.model.changes))
    try:
        _boot(shortened(recipe, arm, target), folder, arm, target, notify)
    finally:
        without_secrets(target, run_files.secrets_of(recipe))
    if not trace_files(target):
        raise LatentMoEError(f"{profiler()} wrote no trace into {target}")
    return folder / "traces" / arm


def _make_empty(target: Path) -> None:
    try:
        target.mkdir(parents=True, exist_ok=True)
        if any(target.iterdir()):
            raise InputError(f"{target} holds traces already")
    except OSError as error:
        raise InputError(f"{target} cannot hold traces ({error.strerror or error})") from error


def shortened(recipe: Recipe, arm: str, target: Path) -> Recipe:
    """The recipe with one arm's one short run, and what vLLM's own profiler needs."""
    client = msgspec.structs.replace(
        recipe.client,
        osl=min(_SHORT_OSL, recipe.client.osl),
        concurrencies=recipe.client.concurrencies[:1],
        prompts_per_concurrency=1,
    )
    server = msgspec.structs.replace(recipe.server, args=[*recipe.server.args, *_server_arguments(target)])
    arms = {arm: recipe.arms[arm]}
    return msgspec.structs.replace(
        recipe, client=client, server=server, arms=arms, pairs=1, parity=None, accuracy=None
    )


def _server_arguments(target: Path) -> list[str]:
    if profiler() != "torch":
        return []
    setting = {
        "profiler": "torch",
        "torch_profiler_dir": str(target),
        "torch_profiler_with_stack": False,
        # Shapes name the GEMMs (M, N, K); the front end runs none.
        "torch_profiler_record_shapes": True,
        "ignore_frontend": True,
    }
    return ["--profiler-config", json.dumps(setting)]


def tracing(target: Path) -> Tracing:
    """What the profiler adds to the server and to the client."""
    if profiler() == "torch":
        return Tracing(client=("--profile",))
    options = ("--kernel-trace", "--marker-trace", "--output-format", "rocpd")
    where = ("--output-directory", str(target), "--output-file", "%pid%")
    # vLLM kills its workers after 9 s otherwise, in the middle of what rocprofv3 writes there.
    env = {"VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS": str(ROCPROF_GRACE_S)}
    return Tracing(wrapper=("rocprofv3", *options, *where, "--"), env=env, grace_s=ROCPROF_GRACE_S)


def _boot(recipe: Recipe, folder: Path, arm: str, target: Path, notify: Notify) -> None:
    boot = schedule.Boot(arm, 1, 0, False)
    python = interpreter(recipe.arms[arm], environment())
    check_programs(recipe, {arm: python})
    meter = Meter(notify, {"boot": 1, "run": 1})
    run = BootRun(
        *(recipe, folder / "profiled", boot, python, "profiled", bench.new_identity(boot), meter),
        tracing=tracing(target),
        cwd=folder,
    )
    try:
        run.run()
    finally:
        run.stop()
