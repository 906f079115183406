"""profiles/: recorded data with its provenance, one folder per recording.

A folder holds manifest.json and the data files that the manifest names. `kind` says what the numbers are:
measured, published, modelled or synthetic; whatever shows them shows the kind too.
"""

import json
import os
from dataclasses import asdict, dataclass, field, fields
from importlib import resources
from pathlib import Path
from typing import Any

from latent_moe.errors import InputError, unknown
from latent_moe.files import write_json

KINDS = ("measured", "published", "modelled", "synthetic")
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Manifest:
    """Where a recording comes from.

    `device` names the hardware the numbers are of, `date` is ISO 8601, `command` remakes the data where that is
    possible, `source` names the publication of data that is not ours, `software` maps a package to its version,
    `files` maps each data file to one line that says what is in it, `parameters` holds what a reader needs to
    interpret the numbers (tp, shapes, seeds).
    """

    name: str
    kind: str
    title: str
    device: str
    date: str
    command: str = ""
    source: str = ""
    software: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    parameters: dict[str, Any] = field(default_factory=dict)
    notes: str = ""

    def __post_init__(self):
        if self.kind not in KINDS:
            raise InputError(f"manifest {self.name}: kind {self.kind!r} is none of {', '.join(KINDS)}")
        for item in fields(self):
            wanted = dict if item.name in ("software", "files", "parameters") else str
            if not isinstance(getattr(self, item.name), wanted):
                raise InputError(
                    f"manifest {self.name}: {item.name} is not {'an object' if wanted is dict else 'text'}"
                )


def profiles_dir() -> Path:
    """LATENT_MOE_PROFILES if set, else the checkout's profiles/, else the copy that an installed package holds."""
    chosen = os.environ.get("LATENT_MOE_PROFILES")
    if chosen:
        return Path(chosen)
    package = Path(str(resources.files("latent_moe")))
    packaged = package / "_profiles"
    return packaged if packaged.is_dir() else package.parent / "profiles"


def load_manifest(folder: str | Path) -> Manifest:
    """Read folder/manifest.json. Raises InputError with the file and the fault."""
    path = Path(folder) / MANIFEST
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        return Manifest(**{f.name: raw[f.name] for f in fields(Manifest) if f.name in raw})
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise InputError(f"{path}: not a manifest ({error})") from error


def write_manifest(folder: str | Path, manifest: Manifest) -> Path:
    """Write folder/manifest.json whole or not at all; returns its path."""
    return write_json(Path(folder) / MANIFEST, asdict(manifest), indent=2)


def folders(root: str | Path | None = None) -> list[Path]:
    """Every folder under profiles/ that has a manifest, by name."""
    top = Path(root) if root else profiles_dir()
    return [path.parent for path in sorted(top.glob(f"*/{MANIFEST}"))]


def list_profiles(root: str | Path | None = None) -> list[Manifest]:
    """The manifests of every recording under profiles/, by name."""
    return [load_manifest(folder) for folder in folders(root)]


def profile_path(name: str) -> Path:
    """The folder of the recording `name`. Raises InputError that names what there is."""
    folder = profiles_dir() / name
    if not (folder / MANIFEST).is_file():
        raise unknown("recording", name, (path.name for path in folders()))
    return folder
