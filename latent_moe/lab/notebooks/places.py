"""Where notebooks write: the tour's folder (LATENT_MOE_RUN), else runs/ below the working folder, else a temporary one."""

import os
import tempfile
from datetime import datetime
from pathlib import Path


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
    return folder.with_name(f"{name}_{datetime.now():%H%M%S}") if folder.exists() else folder


def latest(name: str) -> Path | None:
    """The newest folder that `fresh(name)` gave and that holds a manifest; None where there is none."""
    found = [path for path in run_folder().glob(f"{name}*") if (path / "manifest.json").is_file()]
    return max(found, key=lambda path: path.stat().st_mtime, default=None)
