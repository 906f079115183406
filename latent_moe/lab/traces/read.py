"""Read anything: a file, several files, or a directory, as one recording."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from latent_moe.errors import InputError
from latent_moe.lab.traces import file_trace, identity, metrics, overlap_clip
from latent_moe.lab.traces.file_trace import FileTrace
from latent_moe.lab.traces.readers import sniff
from latent_moe.lab.traces.table import Kernels, Ranges, Trace, TraceNote, group_codes

_PROFILERS = {"PyTorch profiler JSON": "torch.profiler", "exported table": None}


def read(paths: str | Path | Iterable[str | Path], salvage: bool = False) -> Trace:
    """Read one recording.

    Args:
        paths: a file, several files, or a directory (with all below it), in any supported format, gzip or not.
        salvage: read what is whole of a cut or damaged file and mark the result `partial`.

    Raises InputError, naming file and fault: nothing there, nothing readable, damaged, or without kernels.
    """
    files = _files([paths] if isinstance(paths, str | Path) else list(paths))
    trace = Trace(Kernels(0), Ranges(0))
    parts = _parts(files, trace, salvage)
    file_trace.align(parts)
    for part in parts:
        identity.place(part)
    kept, dropped = file_trace.distinct(parts)
    notes = identity.identify(kept)
    _report(trace, kept, dropped)
    trace.warnings += notes
    trace.kernels, trace.ranges = file_trace.joined(kept)
    if not len(trace.kernels):
        raise InputError(_nothing(files, parts, trace))
    _understand(trace)
    trace.warnings = _one_a_kind(trace.warnings)
    return trace


def _one_a_kind(notes: list[TraceNote]) -> list[TraceNote]:
    """The first note of each code, with the number of those like it."""
    counts = Counter(note.code for note in notes)
    first = {note.code: note for note in reversed(notes)}
    more = {code: f" (and {count - 1} more like it)" if count > 1 else "" for code, count in counts.items()}
    return [TraceNote(code, first[code].message + more[code]) for code in counts]


def _files(paths: list[str | Path]) -> dict[Path, bool]:
    """Each file once -> was it named itself (rather than found in a directory)?"""
    if not paths:
        raise InputError("no trace was named")
    files: dict[Path, bool] = {}
    for path in map(Path, paths):
        if path.is_dir():
            inside = sorted(p for p in path.rglob("*") if p.is_file() and not p.name.startswith("."))
            if not inside:
                raise InputError(f"{path}: a directory with nothing in it")
            files |= {p: False for p in inside if p not in files and not p.name.endswith(("-wal", "-shm"))}
        elif path.exists():
            files[path] = True
        else:
            raise InputError(f"{path}: no such file or directory")
    return files


def _parts(files: dict[Path, bool], trace: Trace, salvage: bool) -> list[FileTrace]:
    parts = []
    for path, named in files.items():
        try:
            found = sniff.sniff(path)
            if found.reader is None:
                _ignore(trace, path, found.format, named and len(files) == 1)
                continue
            parts.append(found.reader(path, salvage))
        except (InputError, MemoryError, OSError) as error:
            _excuse(trace, path, error, named or sniff.is_trace_like(path), salvage and len(files) > 1)
    return parts


def _ignore(trace: Trace, path: Path, kind: str, alone: bool) -> None:
    article = "" if kind[:2] in ("a ", "an") else "a "
    if alone:
        raise InputError(f"{path}: this is {article}{kind}, not a kernel trace")
    trace.ignored.append(f"{path.name}: {kind}")


def _excuse(trace: Trace, path: Path, error: Exception, matters: bool, salvage: bool) -> None:
    """A damaged shard would make totals wrong: it stops the reading, unless one salvages what there is."""
    if matters and not salvage:
        raise (
            error
            if isinstance(error, InputError)
            else InputError(f"{path}: {error or 'too large for the memory'}")
        )
    trace.ignored.append(f"{path.name}: {error}")
    if matters:
        trace.partial = True
        trace.warn("partial", f"{path.name} was left out: {error}")


def _report(trace: Trace, kept: list[FileTrace], dropped: list[tuple[FileTrace, FileTrace]]) -> None:
    devices: set[str] = set()
    for part in kept:
        trace.files.append(str(part.path))
        trace.warnings += part.warnings
        trace.partial |= part.partial
        devices |= {part.device} if part.device and len(part.kernels) else set()
        if part.format not in trace.formats:
            trace.formats.append(part.format)
    trace.device = ", ".join(sorted(devices)) or None
    formats = {part.format for part in kept if len(part.kernels)}
    empty = [part.path.name for part in kept if not len(part.kernels) and part.format in formats]
    if empty:
        text = f"{', '.join(empty[:3])} ({len(empty)} files) hold no kernels, files of the same format do"
        trace.warn("kernels_missing", text)
    for part, same in dropped:
        trace.ignored.append(f"{part.path.name}: the same run as {same.path.name}")
        trace.warn(
            "same_run",
            f"{part.path.name} holds the run of {same.path.name} again ({part.format}): not counted twice",
        )
    found = {_PROFILERS.get(part.format, "rocprof") for part in kept if len(part.kernels)}
    profilers = {name for name in found if name}
    if len(profilers) > 1:
        trace.warn(
            "mixed_profilers",
            f"recordings of {' and '.join(sorted(profilers))} are added up: one run, or two?",
        )


def _nothing(files: dict[Path, bool], parts: list[FileTrace], trace: Trace) -> str:
    first = next(iter(files))
    where = f"{first}" if len(files) == 1 else f"{first.parent} ({len(files)} files)"
    if len(parts) == 1 and len(files) == 1 and not parts[0].format.endswith(("CSV", "JSON", "rocpd")):
        return f"{where}: this is a {parts[0].format}, not a kernel trace"
    known = ", ".join(sorted({part.format for part in parts})) or "; ".join(trace.ignored[:3])
    return f"{where}: no kernels ({known})"


def _understand(trace: Trace) -> None:
    """Kind, library, region and GEMM sizes of each kernel; impossible spans clipped; what is odd is said."""
    _classify(trace.kernels)
    _join(trace)
    count, taken = overlap_clip.clip(trace.kernels)
    if count:
        trace.warn(
            "impossible_duration",
            f"{count} kernels still ran when two successors on their queue had started: clipped to the next start, "
            f"{taken} ns taken off",
        )
    untimed = int(np.count_nonzero(~np.asarray(trace.kernels["timed"])))
    if untimed:
        trace.warn("untimed", f"{untimed} kernels have no time: counted apart, in no sum")
    _check_collectives(trace)


def _classify(kernels: Kernels) -> None:
    from latent_moe.lab.traces.kernel_names import classify

    names = kernels["name"]
    found = classify(names.values)
    kernels["kind"] = names.map([str(kind) for kind in found.kind])
    kernels["library"] = names.map([str(library) for library in found.library])


def _join(trace: Trace) -> None:
    kernels = trace.kernels
    if not len(trace.ranges) and not kernels["dims"].values and not kernels["region"].values:
        return
    from latent_moe.lab.traces.regions import join_regions

    for name, column in join_regions(kernels, trace.ranges).items():
        kernels[name] = column


def _check_collectives(trace: Trace) -> None:
    """Kinds that devices which share their work all have, or that one of them lacks: records may be lost."""
    kernels = trace.kernels
    devices, device = np.unique(group_codes(kernels, metrics.DEVICE), return_inverse=True)
    if len(devices) < 2:
        return
    if "collective" not in kernels["kind"].values:
        trace.warn(
            "no_collectives", f"{len(devices)} devices, but not one collective: is the recording whole?"
        )
    column, names = kernels["kind"], metrics.ranks(kernels)
    for kind in ("collective", "gemm"):
        rows = device[column.codes == column.values.index(kind)] if kind in column.values else []
        without = np.setdiff1d(np.arange(len(devices)), rows)
        if 0 < len(without) < len(devices) / 2 or (len(without) == 1 and len(devices) == 2):
            first = int(np.flatnonzero(device == without[0])[0])
            text = f"{names.values[names.codes[first]]} has no {kind} kernels, which {len(devices) - len(without)} other devices have"
            trace.warn("kernels_missing", text)
