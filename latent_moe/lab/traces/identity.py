"""Which device a kernel ran on, decided here alone: host (or guid, or pod), process, agent, in that order.

A reader hands over what its file says: `host` (a recording's guid, a host's name, the "[TP00]" before a process of a
merged trace), `process` (a pid) and `agent`. What a file leaves unsaid is taken from its name, then from its folder.
Containers give every process the same pid and nodes number their agents alike, so a pid alone is no process: where
several hosts, folders or ranks have it, the process's label says which one is meant. Two files that still claim one
device at the same time contradict each other; their kernels are then kept apart by file.
"""

import os
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from latent_moe.lab.traces.file_trace import FileTrace, process_of
from latent_moe.lab.traces.table import Coded, TraceNote, constant

_RANK = re.compile(r"(?:^|[^a-z])(?:rank|tp)[-_ ]?(\d{1,9})(?!\d)", re.IGNORECASE)
_REPLICA = re.compile(r"(?:^|[^a-z])dp[-_ ]?(\d{1,9})(?!\d)", re.IGNORECASE)
# Recordings are separate where more than so many times their own length, and a second, lies between them.
_PAUSE_TIMES, _PAUSE_NS = 5, 10**9


class Process(NamedTuple):
    """One process as its file tells it: `position` is its rank and data-parallel replica, `recording` a guid."""

    pid: str
    position: str
    host: str
    folder: str
    recording: str


def identify(files: list[FileTrace]) -> list[TraceNote]:
    """Give the tables of placed files one label a process; returns what is odd about them."""
    folders = _folders(files)
    tables = [(file, table) for file in files for table in (file.kernels, file.ranges, file.calls)]
    processes = {id(table): _processes(file, table, folders[file.path]) for file, table in tables}
    owners = dict.fromkeys(p for f in files for p in processes[id(f.kernels)].values())
    labels = _labels(owners)
    for _, table in tables:
        _label(table, processes[id(table)], labels)
    return [*_contradictions(files), *_sessions(files, folders), *_missing_ranks(files)]


def place(file: FileTrace) -> None:
    """Rank and source of the file's kernels; ranks that a merged trace tells per process stand in its hosts' names."""
    names = [file.path.name, *(folder.name for folder in file.path.parents)]
    if file.rank < 0:
        file.rank = _number(_RANK, names)
    file.replica = _number(_REPLICA, names)
    host = file.kernels["host"]
    own = np.array([_number(_RANK, [text]) for text in host.values] + [-1], dtype=np.int64)[host.codes]
    if "source" not in file.kernels.columns:
        file.kernels["source"] = constant(str(file.path), len(file.kernels))
    if file.replica >= 0:
        # Engines of a data-parallel job are worlds of their own: all of them have a rank 0.
        engine = f"dp {file.replica}"
        groups = file.kernels["group"]
        named = groups.map([f"{engine} {text}" for text in groups.values])
        file.kernels["group"] = named if groups.values else constant(engine, len(file.kernels))
    if "rank" in file.kernels.columns:
        return
    file.kernels["rank"] = np.where(own >= 0, own, file.rank) if len(host.values) else _same(file.rank, file)


def _same(number: int, file: FileTrace) -> np.ndarray:
    return np.broadcast_to(np.int64(number), len(file.kernels))


def _number(pattern: re.Pattern, names: Iterable[str]) -> int:
    return next((int(match[1]) for name in names if (match := pattern.search(name))), -1)


def _folders(files: list[FileTrace]) -> dict[Path, str]:
    """Each file's folder below the one that holds them all."""
    parents = [str(file.path.absolute().parent) for file in files]
    common = os.path.commonpath(parents) if parents else ""
    return {file.path: os.path.relpath(parent, common) for file, parent in zip(files, parents, strict=True)}


def _processes(file: FileTrace, table, folder: str) -> dict[tuple[int, int], Process]:
    """(host code, process code) -> the process, for the combinations that the table holds."""
    host, process = table["host"], table["process"]
    pairs: np.ndarray | list = (
        np.unique(host.codes.astype(np.int64) * (1 << 32) + process.codes + 1) if len(table) else []
    )
    named_host, named_pid = process_of(file.path)
    found = {}
    for pair in pairs:
        h, p = int(pair) >> 32, (int(pair) & 0xFFFFFFFF) - 1
        said = host.values[h] if h >= 0 else named_host
        named = file.hosts.get(said, said)
        rank = _number(_RANK, [said]) if h >= 0 else -1
        position = _position(rank if rank >= 0 else file.rank, file.replica)
        pid = process.values[p] if p >= 0 else named_pid
        found[h, p] = Process(pid, position, named, "" if h >= 0 else folder, said if h >= 0 else "")
    return found


def _position(rank: int, replica: int) -> str:
    parts = [f"dp {replica}"] * (replica >= 0) + [f"rank {rank}"] * (rank >= 0)
    return ", ".join(parts)


def _labels(owners: Iterable[Process]) -> dict[Process, str]:
    """A text a process: its pid, and where several processes have that pid what tells them apart."""
    by_pid: dict[str, list[Process]] = {}
    for process in owners:
        by_pid.setdefault(process.pid, []).append(process)
    return {process: label for group in by_pid.values() for process, label in _told_apart(group)}


def _told_apart(group: list[Process]) -> list[tuple[Process, str]]:
    if len(group) == 1:
        return [(group[0], group[0].pid)]
    every = ("position", "host", "folder", "recording")
    ways = (("position",), ("host",), ("folder",), ("recording",), ("position", "host"), every)
    for way in ways:
        texts = [", ".join(filter(None, (getattr(p, name) for name in way))) for p in group]
        if all(texts) and len(set(texts)) == len(group):
            break
    return [(p, f"{p.pid} ({text})" if text else p.pid) for p, text in zip(group, texts, strict=True)]


def _label(table, processes: dict[tuple[int, int], Process], labels: dict[Process, str]) -> None:
    if not processes:
        return
    host, process = table["host"], table["process"]
    texts = {pair: _nearest(known, labels) for pair, known in processes.items()}
    if len(texts) == 1:
        table["process"] = constant(next(iter(texts.values())), len(table))
        return
    values = list(dict.fromkeys(texts.values()))
    lookup = np.full((len(host.values) + 1, len(process.values) + 1), -1, dtype=np.int32)
    for (h, p), text in texts.items():
        lookup[h, p] = values.index(text)
    table["process"] = Coded(lookup[host.codes, process.codes], values)


def _nearest(process: Process, labels: dict[Process, str]) -> str:
    """The label of the process itself, or, for a file without kernels, of the process that it must belong to."""
    if process in labels:
        return labels[process]
    alike = [other for other in labels if other.pid == process.pid]
    beside = [
        other for other in alike if other.folder == process.folder or other.position == process.position
    ]
    chosen = alike if len(alike) == 1 else beside if len(beside) == 1 else []
    return labels[chosen[0]] if chosen else process.pid


def _windows(file: FileTrace) -> dict[tuple[str, str], tuple[int, int]]:
    """(process, agent) -> begin and end of what the file holds of it; kernels without a place in time are left out."""
    kernels = file.kernels
    rows = np.flatnonzero(np.asarray(kernels["timed"]) & ~np.asarray(kernels["averaged"]))
    process, agent = kernels["process"], kernels["agent"]
    keys = process.codes[rows].astype(np.int64) * (1 << 32) + agent.codes[rows] + 1
    found = {}
    for key in np.unique(keys):
        chosen = rows[keys == key]
        device = [*agent.values, ""][(int(key) & 0xFFFFFFFF) - 1]
        begin, end = int(kernels["start_ns"][chosen].min()), int(kernels["end_ns"][chosen].max())
        found[process.values[int(key) >> 32], device] = begin, end
    return found


def _contradictions(files: list[FileTrace]) -> list[TraceNote]:
    """Files that claim one device at the same time: their processes get the file's name behind their label."""
    claims: dict[tuple[str, str], list[tuple[int, int, FileTrace]]] = {}
    for file in files:
        for device, (begin, end) in _windows(file).items():
            claims.setdefault(device, []).append((begin, end, file))
    split: dict[str, list[FileTrace]] = {}
    for (process, _), spans in claims.items():
        spans.sort(key=lambda span: span[:2])
        latest, owner = spans[0][1], spans[0][2]
        for begin, end, file in spans[1:]:
            if begin < latest:
                split.setdefault(process, []).extend((owner, file))
            if end > latest:
                latest, owner = end, file
    for process, claimants in split.items():
        for file in dict.fromkeys(claimants):
            for table in (file.kernels, file.ranges, file.calls):
                column = table["process"]
                table["process"] = column.map(
                    [f"{value} in {file.path.name}" if value == process else value for value in column.values]
                )
    return [_contradiction(process, list(dict.fromkeys(claimants))) for process, claimants in split.items()]


def _contradiction(process: str, files: list[FileTrace]) -> TraceNote:
    names = " and ".join(sorted({str(file.path) for file in files})[:3])
    text = f"{names} claim the same device of process {process} at the same time: taken as different devices"
    return TraceNote("device_claimed_twice", text)


def _sessions(files: list[FileTrace], folders: dict[Path, str]) -> list[TraceNote]:
    """Long pauses between the files of one folder: several recordings lie there, whose times and sums make no one run."""
    spans: dict[str, list[tuple[int, int]]] = {}
    for file in files:
        windows = list(_windows(file).values())
        if windows:
            whole = min(begin for begin, _ in windows), max(end for _, end in windows)
            spans.setdefault(folders[file.path], []).append(whole)
    notes = []
    for folder, known in spans.items():
        known.sort()
        longest = max(end - begin for begin, end in known)
        latest = np.maximum.accumulate([end for _, end in known])
        pauses = [begin - last for (begin, _), last in zip(known[1:], latest[:-1].tolist(), strict=True)]
        apart = [pause for pause in pauses if pause > max(_PAUSE_TIMES * longest, _PAUSE_NS)]
        if apart:
            where = "" if folder == "." else f"{folder}: "
            text = (
                f"{where}{len(apart) + 1} recordings with {max(apart) / 1e9:,.0f} s between them are added up"
            )
            notes.append(TraceNote("several_recordings", text))
    return notes


def _missing_ranks(files: list[FileTrace]) -> list[TraceNote]:
    """Ranks of the job that no file is of, and ranks that lack kernels which all others have."""
    sizes = Counter(file.world_size for file in files if file.world_size > 1)
    ranks = {int(rank) for file in files for rank in np.unique(file.kernels["rank"]) if rank >= 0}
    size = max(sizes, default=0)
    if not size or len(ranks) >= size or len(files) < 2:
        return []
    return [TraceNote("ranks_missing", f"{len(ranks)} of {size} ranks are here: sums are theirs alone")]
