"""Writing files whole or not at all, so that an interrupted command leaves no half of one."""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from latent_moe.errors import InputError


def write_whole(path: str | Path, content: str | bytes) -> Path:
    """Write `content` beside `path`, then put it in place; makes missing folders; returns the path."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        part.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    return target


def write_json(path: str | Path, value: Any, indent: int = 1) -> Path:
    """Write `value` as JSON, whole or not at all; raises ValueError for NaN and infinities, which JSON lacks."""
    return write_whole(path, json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False) + "\n")


def check_output(target: str | Path, inputs: Iterable[str | Path], option: str) -> Path:
    """The path to write to. Raises InputError where it is empty, a folder, or would replace what is read.

    `inputs` are the files and folders of the command; `option` names the option in the message.
    """
    path = Path(target)
    if str(target) in ("", ".") or path.is_dir():
        raise InputError(f"{option} {str(target)!r}: a file name is needed")
    for source in map(Path, inputs):
        # Pages and texts in a recording's folder are none of its data: a second run may write them again.
        data = path.exists() and path.suffix.lower() not in (".html", ".md")
        inside = data and source.is_dir() and path.resolve().is_relative_to(source.resolve())
        if inside or (path.exists() and source.exists() and path.samefile(source)):
            raise InputError(f"{option} {path}: would replace what is read; choose another name")
    return path


def check_regular(path: Path) -> None:
    """Raise InputError for what is there and can be opened, but is no file: a pipe or a device may never end."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise InputError(f"{path}: no regular file")
