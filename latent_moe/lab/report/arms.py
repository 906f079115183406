"""What a tour's servers left: for each arm its result files and the line of the server's log that names the tail."""

import json
from pathlib import Path
from typing import Any

from latent_moe.lab.bench.session import gemm_line


def served_arms(folder: Path) -> dict[str, dict[str, Any]]:
    """{arm: {"results": [paths], "tail", "log", "log_line"}} of the bench folders below `folder`; paths relative."""
    arms: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("*/runs/*.json")):
        ours = _ours(path)
        if ours is None:
            continue
        arm = arms.setdefault(
            ours["arm"], {"results": [], "tail": ours.get("tail"), "gemm": ours.get("gemm")}
        )
        arm["results"].append(str(path.relative_to(folder)))
        arm.update(_log_line(folder, path.parents[1] / "logs", ours["arm"]))
    return arms


def _ours(path: Path) -> dict[str, Any] | None:
    try:
        return json.loads(path.read_text(encoding="utf-8")).get("latent_moe")
    except (OSError, ValueError, AttributeError):
        return None


def _log_line(folder: Path, logs: Path, arm: str) -> dict[str, Any]:
    """The last start's log and its line about the up-projection's GEMM, which names the tail."""
    for log in sorted(logs.glob(f"*_{arm}_*/server.log"), reverse=True):
        if line := gemm_line(log):
            return {"log": str(log.relative_to(folder)), "log_line": line[:400]}
    return {"log": None, "log_line": None}
