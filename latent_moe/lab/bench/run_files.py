"""What `bench` writes: one file per run, the greedy answers, and the manifest that says where all of it is from."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from latent_moe.files import write_json
from latent_moe.lab import recordings
from latent_moe.lab.bench.plan import Plan
from latent_moe.lab.secrets import hide
from latent_moe.platform import describe

# Lists with one entry a request: vLLM's own client leaves them out unless asked, so do we.
_PER_REQUEST = (
    "input_lens",
    "output_lens",
    "start_times",
    "ttfts",
    "itls",
    "generated_texts",
    "errors",
    "latencies",
    "queue_times",
)


@dataclass(frozen=True)
class ServerFacts:
    """What one server start says of itself; `identity` is a name that no other start has, whichever plan it is of."""

    identity: str
    vllm_version: str | None = None
    gemm: str | None = None

    def record(self) -> dict[str, Any]:
        """As a run file has it; files of earlier versions call a server start a boot, and so do all."""
        return {"boot": self.identity, "vllm_version": self.vllm_version, "gemm": self.gemm}


def run_record(ours: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, Any]:
    """vLLM's own result with our key beside its keys."""
    kept = {key: value for key, value in result.items() if key not in _PER_REQUEST}
    return {**kept, "latent_moe": dict(ours)}


def save(path: Path, record: Any, secrets: Sequence[str]) -> None:
    """Write a record whole, with every secret value hidden."""
    write_json(path, hidden(record, secrets))


def hidden(value: Any, secrets: Sequence[str]) -> Any:
    """The same JSON value with every secret hidden, and null for the numbers that JSON lacks."""
    if isinstance(value, str):
        return hide(value, secrets)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: hidden(item, secrets) for key, item in value.items()}
    return [hidden(item, secrets) for item in value] if isinstance(value, list) else value


def scrub(folder: Path, secrets: Sequence[str]) -> None:
    """Hide secrets in every text file below `folder` that another program wrote."""
    for path in (path for path in folder.rglob("*") if path.is_file()):
        text = path.read_text(encoding="utf-8", errors="surrogateescape")
        if (clean := hide(text, secrets)) != text:
            path.write_text(clean, encoding="utf-8", errors="surrogateescape")


def write_manifest(plan: Plan, versions: Mapping[str, str]) -> None:
    """manifest.json for what lies in the plan's folder now."""
    manifest = recordings.Manifest(
        name=plan.name,
        kind="measured",
        title=plan.title,
        device=plan.device,
        date=datetime.now().astimezone().date().isoformat(),
        command=plan.command,
        software={**_software_so_far(plan.out), "torch": describe().torch_version, **versions},
        files={str(path.relative_to(plan.out)): _describe(path) for path in _data_files(plan.out)},
        parameters=dict(plan.parameters),
        notes=plan.notes,
    )
    recordings.write_manifest(plan.out, recordings.Manifest(**hidden(asdict(manifest), plan.secrets)))


def _software_so_far(out: Path) -> dict[str, str]:
    """What an interrupted bench wrote: a resumed one may start only some of the arms."""
    return recordings.load_manifest(out).software if (out / recordings.MANIFEST).is_file() else {}


def _data_files(out: Path) -> list[Path]:
    rooms = ("runs", "parity", "accuracy")
    return sorted(path for room in rooms for path in (out / room).rglob("*") if path.is_file())


def _describe(path: Path) -> str:
    kinds = {"runs": "one run of vLLM's benchmark client", "parity": "greedy answers of one arm"}
    return kinds.get(path.parent.name, "as lm_eval wrote it")
