"""One short session of one arm under a profiler: rocprofv3 around the server, or vLLM's own torch profiler inside it."""

import gzip
import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from latent_moe.errors import InputError, LatentMoEError, unknown
from latent_moe.lab.bench import bench
from latent_moe.lab.bench.commands import Command
from latent_moe.lab.bench.machine import reserved_ports
from latent_moe.lab.bench.model_dir import write_model
from latent_moe.lab.bench.plan import ClientRun, Plan, SessionEntry
from latent_moe.lab.bench.recipe import Recipe
from latent_moe.lab.bench.resolve import resolve
from latent_moe.lab.bench.session import Notify, ServerSession
from latent_moe.lab.traces.scrub import scrub
from latent_moe.platform import describe

_SHORT_OSL = 8
# rocprofv3 writes when the traced process ends, in that process: gigabytes for a large server.
ROCPROF_GRACE_S = 300
_CHUNK = 1 << 24
_TRACES = (".db", ".json", ".json.gz", ".pftrace", ".csv")


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
    folder = Path(out) if out else bench.default_folder(recipe.name)
    target = (folder / "traces" / arm).resolve()
    with reserved_ports(1) as ports:
        plan = profile_plan(recipe, arm, folder, ports)
        _make_empty(target)
        if plan.model_config:
            write_model(folder / plan.sessions[0].model, dict(plan.model_config))
        bench.check_programs(plan)
        try:
            _run(plan, notify)
        finally:
            without_secrets(target, plan.secrets)
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


def profile_plan(recipe: Recipe, arm: str, folder: Path, ports: Sequence[int] | None = None) -> Plan:
    """One session of one arm: its one short run, and what the profiler adds to the server and to that run.

    Its results lie in `folder`/profiled, its traces in `folder`/traces. Raises InputError where there is no such arm and
    nothing to profile.
    """
    if arm not in recipe.arms:
        raise unknown("arm", arm, recipe.arms)
    if not recipe.client.concurrencies:
        raise InputError(f"{recipe.name} drives no client: nothing to profile")
    target = (folder / "traces" / arm).resolve()
    client = msgspec.structs.replace(
        recipe.client,
        osl=min(_SHORT_OSL, recipe.client.osl),
        concurrencies=recipe.client.concurrencies[:1],
        prompts_per_concurrency=1,
    )
    arms = {arm: recipe.arms[arm]}
    short = msgspec.structs.replace(recipe, client=client, arms=arms, pairs=1, parity=None, accuracy=None)
    plan = resolve(short, folder / "profiled", ports=ports, device="profiled")
    (entry,) = plan.sessions
    if entry.server is None or entry.cleanup:
        raise InputError(f"{arm} cannot be profiled: only a server of this machine is traced")
    add = _under_torch if profiler() == "torch" else _under_rocprofv3
    return replace(plan, sessions=[replace(add(entry, entry.server, target), cwd=folder, go=None)])


def _under_torch(entry: SessionEntry, server: Command, target: Path) -> SessionEntry:
    """vLLM's own profiler, told by the client when to record."""
    setting = {
        "profiler": "torch",
        "torch_profiler_dir": str(target),
        "torch_profiler_with_stack": False,
        # Shapes name the GEMMs (M, N, K); the front end runs none.
        "torch_profiler_record_shapes": True,
        "ignore_frontend": True,
    }
    added = [*server.added, "--profiler-config", json.dumps(setting)]
    runs = [_recorded(run) if run.run_file else run for run in entry.runs]
    return replace(entry, server=replace(server, added=added), runs=runs)


def _recorded(run: ClientRun) -> ClientRun:
    return replace(run, command=replace(run.command, added=[*run.command.added, "--profile"]))


def _under_rocprofv3(entry: SessionEntry, server: Command, target: Path) -> SessionEntry:
    """rocprofv3 around the server."""
    options = ("--kernel-trace", "--marker-trace", "--output-format", "rocpd")
    where = ("--output-directory", str(target), "--output-file", "%pid%")
    # vLLM kills its workers after 9 s otherwise, in the middle of what rocprofv3 writes there.
    env = {**server.env, "VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS": str(ROCPROF_GRACE_S)}
    words = ["rocprofv3", *options, *where, "--", *server.words]
    return replace(entry, server=Command(words, env, server.added), grace_s=ROCPROF_GRACE_S)


def _run(plan: Plan, notify: Notify) -> None:
    (entry,) = plan.sessions
    session = ServerSession(plan, entry, bench.new_identity(entry), bench.meter_of(plan, notify))
    try:
        session.run()
    finally:
        session.stop()


def trace_files(folder: Path) -> list[Path]:
    """Files that `latent-moe kernels` reads."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name.endswith(_TRACES))


def without_secrets(folder: Path, secrets: Sequence[str]) -> None:
    """Replace the folder's traces by scrubbed copies if any file holds one of `secrets`; a file that cannot be scrubbed
    is removed. Raises LatentMoEError, with nothing left, where a secret would survive.
    """
    wanted = [secret.encode() for secret in secrets]
    if not any(_holds(path, wanted) for path in _files(folder)):
        return
    clean = folder.with_name(f"{folder.name}.clean")
    try:
        scrub([folder], clean)
        if any(_holds(path, wanted) for path in _files(clean)):
            raise LatentMoEError(
                f"{folder}: the traces hold a secret that cannot be taken out; they were removed"
            )
    except LatentMoEError:
        shutil.rmtree(clean, ignore_errors=True)
        raise
    finally:
        shutil.rmtree(folder)
    clean.rename(folder)


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def _holds(path: Path, secrets: Sequence[bytes]) -> bool:
    """Whether the file's bytes (unpacked) hold one of `secrets`, also across the ends of what is read at a time."""
    longest = max(map(len, secrets), default=0)
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        kept = b""
        while chunk := file.read(_CHUNK):
            if any(secret in kept + chunk for secret in secrets):
                return True
            kept = chunk[-longest:]
    return False
