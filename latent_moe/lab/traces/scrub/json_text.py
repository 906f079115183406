"""JSON and CSV recordings: metadata by a list of what may stay, every other text cleaned."""

import re
from pathlib import Path
from typing import Any

import msgspec

from latent_moe.errors import InputError
from latent_moe.lab.secrets import Secrets

# PyTorch profiler, beside the events. Everything else (traceName, host_name, env, pip lists, ...) goes.
_KINETO_KEEP = {
    *("schemaVersion", "deviceProperties", "traceEvents", "displayTimeUnit", "baseTimeNanoseconds"),
    *("record_shapes", "with_flops", "with_modules", "with_stack", "profile_memory", "trace_id"),
    *("roctracer_version", "cupti_version", "hip_runtime_version", "hip_driver_version"),
    *("cuda_runtime_version", "cuda_driver_version"),
}
_DISTRIBUTED_KEEP = ("backend", "rank", "world_size")
_TOOL_KEEP = {"pid", "init_time", "fini_time"}
_NODE_KEEP = {"id", "system_name", "hardware_name"}
_HOSTNAME = re.compile("host_?name|node_?name|machine_id", re.IGNORECASE)
_FILE_LISTS = ("att_filenames", "code_object_snapshot_filenames")


class UnknownContent(InputError):
    """JSON that is no trace, bytes that are no packets: nobody knows where secrets stand, so it is not copied."""


def clean_json(content: bytes, path: Path, secrets: Secrets) -> bytes:
    """A clean copy of rocprofv3's or PyTorch's JSON. Raises InputError for cut or malformed JSON, UnknownContent for other."""
    try:
        raw = msgspec.json.decode(content.removeprefix(b"\xef\xbb\xbf"))
    except (msgspec.DecodeError, RecursionError) as error:
        raise InputError(f"{path}: cannot be scrubbed, it is no whole JSON ({error})") from error
    if isinstance(raw, dict) and "rocprofiler-sdk-tool" in raw:
        kept: Any = _tool(raw, secrets)
    elif isinstance(raw, dict) and "traceEvents" in raw:
        kept = _kineto(raw, secrets)
    elif isinstance(raw, list):
        kept = raw
    else:
        raise UnknownContent(f"{path.name}: JSON of an unknown kind, so what is secret in it is not known")
    return msgspec.json.encode(_walk(kept, secrets))


def clean_csv(content: bytes, path: Path, secrets: Secrets) -> bytes:
    """CSV holds no metadata: texts are cleaned, the layout stays byte for byte."""
    del path  # Nothing in a CSV is refused.
    encoding = "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8"
    text = content.decode(encoding, "surrogateescape" if encoding == "utf-8" else "replace")
    return secrets.clean(text).encode(encoding, "surrogateescape" if encoding == "utf-8" else "replace")


def _tool(raw: dict, secrets: Secrets) -> dict:
    runs = raw["rocprofiler-sdk-tool"]
    return {"rocprofiler-sdk-tool": [_run(run, secrets) for run in runs if isinstance(run, dict)]}


def _run(run: dict, secrets: Secrets) -> dict:
    metadata = run.get("metadata") or {}
    node = metadata.get("node") or {}
    _learn(metadata, secrets)
    kept = {key: value for key, value in metadata.items() if key in _TOOL_KEEP}
    kept["node"] = {key: value for key, value in node.items() if key in _NODE_KEEP}
    strings = run.get("strings")
    strings = (
        {k: [] if k in _FILE_LISTS else v for k, v in strings.items()}
        if isinstance(strings, dict)
        else strings
    )
    objects = run.get("code_objects") or []
    objects = [
        {**entry, "uri": ""} if isinstance(entry, dict) and "uri" in entry else entry for entry in objects
    ]
    return {**run, "metadata": kept, "strings": strings, "code_objects": objects}


def _kineto(raw: dict, secrets: Secrets) -> dict:
    dropped = {key: value for key, value in raw.items() if key not in _KINETO_KEEP}
    distributed = dropped.pop("distributedInfo", None)
    _learn(dropped, secrets)
    kept = {key: value for key, value in raw.items() if key in _KINETO_KEEP}
    if isinstance(distributed, dict):
        kept["distributedInfo"] = {key: distributed[key] for key in _DISTRIBUTED_KEEP if key in distributed}
    return kept


def _learn(dropped: Any, secrets: Secrets, key: str = "") -> None:
    """Every text in what is dropped counts: values, command words, host names."""
    if isinstance(dropped, dict):
        secrets.add_environment({str(k): v for k, v in dropped.items() if isinstance(v, str)})
        for name, value in dropped.items():
            _learn(value, secrets, str(name))
    elif isinstance(dropped, list):
        for value in dropped:
            _learn(value, secrets, key)
    elif isinstance(dropped, str):
        secrets.add_command(dropped) if "command" in key else secrets.add_values([dropped])
        if _HOSTNAME.search(key):
            secrets.add_names([dropped, dropped.split(".")[0]])


def _walk(value: Any, secrets: Secrets) -> Any:
    seen: dict[str, str] = {}

    def walk(node):
        if isinstance(node, str):
            if node not in seen:
                seen[node] = secrets.clean(node)
            return seen[node]
        if isinstance(node, dict):
            return {walk(key): walk(item) for key, item in node.items()}
        return [walk(item) for item in node] if isinstance(node, list) else node

    return walk(value)
