"""The trace files that a profiled server left, and none of the recipe's secrets in them."""

import gzip
import shutil
from collections.abc import Sequence
from pathlib import Path

from latent_moe.errors import LatentMoEError
from latent_moe.lab.traces.scrub import scrub

_CHUNK = 1 << 24
_TRACES = (".db", ".json", ".json.gz", ".pftrace", ".csv")


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
