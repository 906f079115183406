"""What a file is, by its content: names and suffixes are not asked."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from latent_moe.lab.traces.readers.raw_files import SQLITE, blocks, head

_TOOL, _EVENTS = b'"rocprofiler-sdk-tool"', b'"traceEvents"'
_SEARCH_BYTES = 64 << 20


@dataclass(frozen=True)
class Sniffed:
    """A file's format and its reader; no reader: a file of that format holds no kernels."""

    format: str
    reader: Callable | None = None


# Known formats that are not read, with the export of the same tool that is.
_OTHER_DATABASES = {
    "rocpd_op": "rocmProfileData (RPD) database; rocprofv3 --kernel-trace writes what is read here",
    "CUPTI_ACTIVITY_KIND_KERNEL": "Nsight Systems database; PyTorch's profiler writes JSON that is read here",
}
_LEGACY_JSON = "Chrome JSON of legacy rocprof; its results.csv or results.db is read here"
_JAX = "JAX (XLA) profiler JSON; rocprofv3 -- python writes what is read here"
UNKNOWN = Sniffed("a file of no format that is known here")


def sniff(path: Path) -> Sniffed:
    """The format and the reader of a file. Raises InputError: unreadable, empty, a damaged database."""
    start = head(path)
    if start.startswith(SQLITE):
        return _database(path)
    if start.startswith(b"PAR1"):
        from latent_moe.lab.traces import export

        return Sniffed(export.SAVED, export.read_parquet)
    text = start.lstrip(b"\xef\xbb\xbf \t\r\n")
    if found := _perfetto(start):
        return found
    if text[:1] in (b"{", b"["):
        return _json(path, start)
    return _csv(start) or UNKNOWN


def _database(path: Path) -> Sniffed:
    from latent_moe.lab.traces.readers import raw_files, rocpd, rocprof_v1

    with raw_files.opened(path) as connection:
        names = raw_files.tables(connection)
        if rocpd.is_rocpd(names):
            return Sniffed(rocpd.FORMAT, rocpd.read)
        if rocprof_v1.kernel_table(connection, names):
            return Sniffed(rocprof_v1.DATABASE, rocprof_v1.read_database)
    for table, kind in _OTHER_DATABASES.items():
        if table in names:
            return Sniffed(kind)
    return Sniffed("SQLite database without kernels")


def _json(path: Path, start: bytes) -> Sniffed:
    if b'"BeginNs"' in start and b'"DurationNs"' in start:
        return Sniffed(_LEGACY_JSON)
    if b'"/device:GPU:' in start and b'"cat"' not in start:
        return Sniffed(_JAX)
    which = _key(start) or _key_further_on(path)
    if which == _TOOL:
        from latent_moe.lab.traces.readers import rocprof_json

        return Sniffed(rocprof_json.FORMAT, rocprof_json.read)
    if which == _EVENTS or (start.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"[") and b'"ph"' in start):
        from latent_moe.lab.traces.readers import kineto

        return Sniffed(kineto.FORMAT, kineto.read)
    return Sniffed(
        "JSON file that is no trace (no traceEvents, no rocprofiler-sdk-tool; results of bench are for `table`)"
    )


def _key(text: bytes) -> bytes | None:
    places = {key: text.find(key) for key in (_TOOL, _EVENTS)}
    present = [key for key, place in places.items() if place >= 0]
    return min(present, key=places.__getitem__) if present else None


def _key_further_on(path: Path) -> bytes | None:
    """The key that tells, where long metadata stand in front of it."""
    last, count = b"", 0
    for block in blocks(path, 1 << 20, salvage=True):
        if key := _key(last + block):
            return key
        last, count = block[-32:], count + len(block)
        if count > _SEARCH_BYTES:
            break
    return None


def _csv(start: bytes) -> Sniffed | None:
    from latent_moe.lab.traces.readers import rocprof_csv, rocprof_v1

    encoding = "utf-16" if start[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    text = start.decode(encoding, "replace")
    kind = rocprof_csv.kind_of(rocprof_csv.header_of(text)[1])
    if kind in (rocprof_v1.STATS, rocprof_v1.STATS_V3) and not rocprof_v1.are_of_kernels(text):
        return Sniffed(f"{kind} of API calls, copies or domains")
    readers = {
        rocprof_csv.FORMAT: rocprof_csv.read,
        rocprof_csv.API: rocprof_csv.read,
        rocprof_v1.CSV: rocprof_v1.read_csv,
        rocprof_csv.ROCPROFV2: rocprof_csv.read,
        rocprof_v1.STATS: rocprof_v1.read_stats,
        rocprof_v1.STATS_V3: rocprof_v1.read_stats,
    }
    return Sniffed(kind, readers.get(kind)) if kind else None


def _perfetto(start: bytes) -> Sniffed | None:
    from latent_moe.lab.traces.readers import pftrace

    return Sniffed(pftrace.FORMAT, pftrace.read) if pftrace.looks_like(start) else None


def is_trace_like(path: Path) -> bool:
    """Does an empty or unreadable file's name promise a trace?"""
    names = path.name.lower().removesuffix(".gz")
    return names.endswith((".json", ".csv", ".db", ".pftrace", ".rpd", ".parquet"))


__all__ = ["UNKNOWN", "Sniffed", "is_trace_like", "sniff"]
