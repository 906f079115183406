"""Writing files whole or not at all, so that an interrupted command leaves no half of one."""

import json
import os
from pathlib import Path
from typing import Any


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
