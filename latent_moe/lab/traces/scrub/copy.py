"""scrub: files and directories in, clean copies out, checked byte by byte."""

import gzip
from dataclasses import dataclass, field
from pathlib import Path

from latent_moe.errors import InputError, LatentMoEError
from latent_moe.lab.secrets import Secrets
from latent_moe.lab.traces.file_trace import FileTrace, process_of
from latent_moe.lab.traces.readers import pftrace
from latent_moe.lab.traces.readers.raw_files import SQLITE, content, head, is_packed
from latent_moe.lab.traces.scrub import json_text, rocpd_copy
from latent_moe.lab.traces.table import Kernels

_KEPT_FIELDS = (
    *("timestamp", "timestamp_clock_id", "trusted_packet_sequence_id", "sequence_flags"),
    *("track_descriptor", "interned_data", "track_event", "trace_packet_defaults"),
)


@dataclass
class Scrubbed:
    """What was written, and what was left out because its secrets are not known."""

    written: list[Path] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def scrub(paths: list[Path], out: Path) -> Scrubbed:
    """Copy recordings (files, directories) into the directory `out` without host names, user names, command lines and
    environments. Directory names are dropped: rocprofv3 names them after the host.

    Raises InputError: nothing to copy, damaged files, `out` holds files already or is one of the inputs;
    LatentMoEError when a secret would survive (nothing of that file is left then).
    """
    files = _files(paths)
    _check_out(files, out)
    secrets = Secrets()
    secrets.add_this_machine()
    for path in files:
        # PyTorch puts the host in front of the process in a file's name.
        host = process_of(path)[0]
        secrets.add_names([host, host.split(".")[0]])
    fresh = not out.exists()
    out.mkdir(parents=True, exist_ok=True)
    try:
        return _checked(files, out, secrets)
    except BaseException:
        # Nothing stays of a copy that was refused: not one file of several, and no empty directory.
        for target in out.iterdir():
            target.unlink()
        if fresh:
            out.rmdir()
        raise


def _checked(files: list[Path], out: Path, secrets: Secrets) -> Scrubbed:
    known = len(secrets.all())
    done = _all(files, out, secrets)
    if len(secrets.all()) > known:
        # What a later file calls secret, an earlier one (or its name) may have kept: once more, knowing all.
        for target in done.written:
            target.unlink()
        done = _all(files, out, secrets)
    if not done.written:
        raise InputError(f"{files[0]}: nothing that can be scrubbed ({'; '.join(done.left_out)})")
    return done


def _all(files: list[Path], out: Path, secrets: Secrets) -> Scrubbed:
    done = Scrubbed()
    for path in files:
        try:
            _one(path, out, secrets, done)
        except json_text.UnknownContent as error:
            done.left_out.append(str(error))
    return done


def _files(paths: list[Path]) -> list[Path]:
    files = []
    for path in paths:
        if not path.exists():
            raise InputError(f"{path}: no such file or directory")
        files += sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    if not files:
        raise InputError(f"{paths[0]}: a directory with nothing in it")
    return files


def _check_out(files: list[Path], out: Path) -> None:
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise InputError(f"{out}: a scrubbed copy needs a directory that is new or empty")
    if any(out.resolve() == path.resolve() for path in files):
        raise InputError(f"{out}: the copy would overwrite what it is made from")


def _one(path: Path, out: Path, secrets: Secrets, done: Scrubbed) -> None:
    start = head(path)
    kind = _kind(start)
    if kind is None:
        done.left_out.append(f"{path.name}: neither rocpd, nor JSON, nor CSV, nor a Perfetto trace")
        return
    target = out / _name(path, len(done.written), out, secrets)
    if kind == "rocpd":
        rocpd_copy.copy(path, target, secrets)
    else:
        whole = content(path)
        cleaners = {"json": json_text.clean_json, "csv": json_text.clean_csv, "pftrace": _clean_pftrace}
        clean = cleaners[kind](whole, path, secrets)
        target.write_bytes(gzip.compress(clean, mtime=0) if is_packed(path) else clean)
    _check(target, secrets)
    done.written.append(target)


def _kind(start: bytes) -> str | None:
    text = start.lstrip(b"\xef\xbb\xbf \t\r\n")
    if start.startswith(SQLITE):
        return "rocpd"
    if pftrace.looks_like(start):
        return "pftrace"
    if text[:1] in (b"{", b"["):
        return "json"
    first = text.splitlines()[0] if text else b""
    return "csv" if b"," in first.replace(b"\x00", b"") and _is_text(start) else None


def _clean_pftrace(content: bytes, path: Path, secrets: Secrets) -> bytes:
    """The packets that hold slices and tracks, every text in them cleaned; all others (machine, configuration) go."""
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

    kept = Trace()
    try:
        packets = list(pftrace.packets(FileTrace(path, pftrace.FORMAT, Kernels(0)), content, False))
    except InputError as error:
        raise json_text.UnknownContent(str(error)) from None
    for packet in packets:
        copy = kept.packet.add()
        for name in _KEPT_FIELDS:
            if packet.HasField(name):
                value = getattr(packet, name)
                if hasattr(value, "CopyFrom"):
                    getattr(copy, name).CopyFrom(value)
                else:
                    setattr(copy, name, value)
        process = copy.track_descriptor.process if copy.HasField("track_descriptor") else None
        if process is not None and copy.track_descriptor.HasField("process"):
            secrets.add_command([pftrace.text_of(word) for word in process.cmdline])
            process.ClearField("cmdline")
            process.ClearField("process_name")
    _clean_message(kept, secrets)
    return kept.SerializeToString()


def _clean_message(message, secrets: Secrets) -> None:
    """Clean every text of a protobuf message and of those inside it."""
    for field_, value in message.ListFields():
        repeated = not isinstance(value, str | bytes | int | float) and not hasattr(value, "ListFields")
        if field_.type == field_.TYPE_STRING and repeated:
            value[:] = [secrets.clean(pftrace.text_of(text)) for text in value]
        elif field_.type == field_.TYPE_STRING:
            setattr(message, field_.name, secrets.clean(pftrace.text_of(value)))
        elif field_.type == field_.TYPE_MESSAGE:
            for inner in value if repeated else [value]:
                _clean_message(inner, secrets)


def _name(path: Path, number: int, out: Path, secrets: Secrets) -> str:
    name = secrets.clean(path.name)
    return name if not (out / name).exists() else f"{number}_{name}"


def _check(target: Path, secrets: Secrets) -> None:
    found = secrets.left_in(content(target))
    if found:
        target.unlink()
        raise LatentMoEError(f"{target.name}: not written, {len(found)} secret texts would have stayed in it")


def _is_text(start: bytes) -> bool:
    return start[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\x00" not in start
