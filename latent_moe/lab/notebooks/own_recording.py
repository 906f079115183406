"""What notebooks open and where they write: a recording of your own or the synthetic one, and the folder for results."""

import os
import tempfile
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from latent_moe.errors import InputError
from latent_moe.lab.recordings import MANIFEST, Manifest, load_manifest, profile_path
from latent_moe.lab.traces import Trace, read_trace
from latent_moe.lab.traces.readers.rocpd import FORMAT
from latent_moe.lab.traces.readers.sniff import sniff

STAND_IN = "synthetic_k3_tail"
TAILS = ("replicated", "column_parallel")


@dataclass(frozen=True)
class Opened:
    """A recording with what each part of the notebook reads. `says` has a line for the recording and one for every
    part that it lacks, naming what is read in its place; `about` and `arms_about` are the manifests of what is shown.
    """

    trace: Trace
    about: Manifest
    arms: dict[str, Trace]
    arms_about: Manifest
    database: Path
    says: list[str]


def open_recording(recording: str | Path | None = None) -> Opened:
    """Open a trace file, or a folder with a trace or with a folder per tail; None opens the synthetic recording.

    Raises InputError where nothing can be read, as `read_trace` does.
    """
    path = Path(recording) if recording else profile_path(STAND_IN)
    own_arms = all((path / tail).is_dir() for tail in TAILS)
    first = path / TAILS[0] if own_arms else path
    trace = read_trace(first)
    about = _about(path)
    says = [f"{about.name}: {about.title} ({about.kind}; {', '.join(trace.formats)}; {about.device})"]
    database = _database(first)
    if database is None:
        says.append(_instead(about, "no rocpd database", "The SQL below reads"))
    if not own_arms:
        says.append(
            _instead(about, f"no folder for each of {' and '.join(TAILS)}", "The two arms are those of")
        )
    pair = path if own_arms else profile_path(STAND_IN)
    arms = {tail: trace if own_arms and tail == TAILS[0] else read_trace(pair / tail) for tail in TAILS}
    found = database or _stand_in_database()
    return Opened(trace, about, arms, about if own_arms else _about(pair), found, says)


def _instead(about: Manifest, lacks: str, what: str) -> str:
    return f"{about.name} has {lacks}. {what} profiles/{STAND_IN} (synthetic, invented times) instead."


def _about(path: Path) -> Manifest:
    """The manifest of the recording that holds `path`; without one what is known: its name, and that it is a recording."""
    for folder in (path, *path.absolute().parents[:2]):
        if (folder / MANIFEST).is_file():
            return load_manifest(folder)
    return Manifest(path.name, "measured", "a trace without a manifest", "device not stated", "")


def _database(path: Path) -> Path | None:
    """The first rocpd database of the recording."""
    files = [path] if path.is_file() else sorted(one for one in path.rglob("*") if one.is_file())
    return next((one for one in files if _is_rocpd(one)), None)


def _is_rocpd(path: Path) -> bool:
    try:
        return sniff(path).format == FORMAT
    except InputError:
        return False


def _stand_in_database() -> Path:
    return profile_path(STAND_IN) / TAILS[0] / "results.db"


def run_folder() -> Path:
    """A folder that can be written; made when it is not there."""
    chosen = os.environ.get("LATENT_MOE_RUN")
    if chosen:
        return Path(chosen)
    try:
        folder = Path("runs").resolve()
        folder.mkdir(exist_ok=True)
        (folder / ".probe").touch()
        (folder / ".probe").unlink()
        return folder
    except OSError:
        return Path(tempfile.mkdtemp(prefix="latent_moe_"))


def fresh(name: str) -> Path:
    """A path for new results that does not exist yet; a second run beside the first gets the time into its name."""
    folder = run_folder() / name
    return folder.with_name(f"{name}_{datetime.now().astimezone():%H%M%S}") if folder.exists() else folder


def latest(name: str) -> Path | None:
    """The newest folder that `fresh(name)` gave and that holds a manifest; None where there is none."""
    found = [path for path in run_folder().glob(f"{name}*") if (path / "manifest.json").is_file()]
    return max(found, key=lambda path: path.stat().st_mtime, default=None)
