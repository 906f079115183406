"""Paths, files and folders, into results, and the rule by which a run gets its arm.

An arm's name is what the file says (`bench`, the client's --label, the `config` of a published table). Where the file
says nothing, each PATH of the command is an arm named after it, and of a single folder each sub-folder is an arm, or
each file.
"""

import codecs
import csv
import gzip
import io
import json
import math
import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from latent_moe.errors import InputError
from latent_moe.files import check_regular
from latent_moe.lab import recordings
from latent_moe.lab.results.accuracy import Accuracy, accuracies_from_json, looks_like_accuracy
from latent_moe.lab.results.client import (
    looks_like_client_text,
    looks_like_run,
    run_from_json,
    runs_from_text,
)
from latent_moe.lab.results.parity import Answers, answers_from_json, looks_like_answers
from latent_moe.lab.results.pasted import looks_pasted, read_pasted
from latent_moe.lab.results.run import METRICS, Note, Run, possible

_SUFFIXES = {".json", ".jsonl", ".csv", ".log", ".txt", ".out"}
_PACKED_LIMIT = 1 << 28  # bytes that a packed file may unpack to: 256 MiB
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# What `kubectl logs --timestamps` and compose put before each line.
_LOG_PREFIX = re.compile(
    r"^(?:\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:\d\d) |[A-Za-z][\w.-]* +\| )", re.MULTILINE
)
# A sweep's folder of one cell: run=0.json, run=1.json ..., their summary, and a warm-up.
_SWEEP_RUN = re.compile(r"run=\d+\.json$")
_SERVE = re.compile(r"SERVE--(.*?)(?:-?BENCH--.*)?$")
# The rooms of a `bench` folder that hold results; its logs and state repeat or precede them.
_BENCH_ROOMS = ("runs", "parity", "accuracy")
_TABLE_KEYS = ("isl", "osl", "concurrency", "config")


@dataclass
class Results:
    """What was read: benchmark runs, accuracies, greedy answers, and what the reader must know about them."""

    runs: list[Run] = field(default_factory=list)
    accuracies: list[Accuracy] = field(default_factory=list)
    answers: list[Answers] = field(default_factory=list)
    warnings: list[Note] = field(default_factory=list)

    def add(self, other: "Results") -> None:
        """Take over everything that `other` holds."""
        self.runs += other.runs
        self.accuracies += other.accuracies
        self.answers += other.answers
        self.warnings += other.warnings

    def named(self, arm: str) -> "Results":
        """The same with `arm` wherever a file names none itself."""
        self.runs = [replace(item, arm=item.arm or arm) for item in self.runs]
        self.accuracies = [replace(item, arm=item.arm or arm) for item in self.accuracies]
        self.answers = [replace(item, arm=item.arm or arm) for item in self.answers]
        return self


class NotAResult(InputError):
    """The file can be read, but holds nothing that the table knows."""


def read_results(paths: Iterable[str | Path]) -> Results:
    """Read every path. Raises InputError where one cannot be used or holds no result."""
    tops = [Path(path) for path in paths]
    read = [
        _read_folder(top, name if len(tops) > 1 else None) if top.is_dir() else _read_alone(top, name)
        for top, name in zip(tops, _path_names(tops), strict=True)
    ]
    _tell_paths_apart(read, _path_names(tops))
    _number_sessions(read)
    results = Results()
    for one_path in read:
        results.add(one_path)
    return results


def _tell_paths_apart(read: list[Results], names: list[str]) -> None:
    """Two paths are two arms: one label that the client wrote into several of them names none of them."""
    labels = [{run.arm for run in results.runs if run.role is None} for results in read]
    for index, (results, name) in enumerate(zip(read, names, strict=True)):
        others = set().union(*(labels[:index] + labels[index + 1 :]))
        if (
            len(labels[index]) == 1
            and labels[index] & others
            and all(r.kind == "measured" for r in results.runs)
        ):
            results.runs = [replace(run, arm=name) for run in results.runs]


def _number_sessions(read: list[Results]) -> None:
    """Every session of `bench` counts its pairs from 1: those of a later path go on where the earlier ones end."""
    last = 0
    for results in read:
        numbers = [run.pair for run in results.runs if run.pair is not None]
        if last and numbers:
            results.runs = [
                run if run.pair is None else replace(run, pair=run.pair + last) for run in results.runs
            ]
        last += max(numbers, default=0)


def _path_names(paths: list[Path]) -> list[str]:
    """A short name for each path: its stem, or as much of the path as tells it from the others."""
    names = [path.resolve().name if path.is_dir() else _stem(path) for path in paths]
    if len(set(names)) == len(names):
        return names
    return [path.with_suffix("").as_posix() for path in paths]


def _stem(path: Path) -> str:
    return Path(path.stem).stem if path.suffix.lower() == ".gz" else path.stem


def _read_alone(path: Path, name: str) -> Results:
    """A file by itself; of a recording where the manifest beside it names it."""
    results = read_file(path).named(name)
    try:
        named = path.name in _companions(path.parent)
    except InputError:
        # A broken manifest says nothing about a file that was asked for by its name.
        named = False
    return _with_provenance(results, path.parent) if named else results


def _read_folder(top: Path, arm: str | None) -> Results:
    results, skipped = Results(), []
    known = _companions(top)
    files = _result_files(top)
    arm = arm or _only_arm(files, top)
    for path in files:
        try:
            results.add(read_file(path).named(_sweep_arm(path, top) or arm or _name_within(path, top)))
        except NotAResult:
            if path.relative_to(top).as_posix() not in known:
                skipped.append(path.relative_to(top).as_posix())
    if not (results.runs or results.accuracies or results.answers):
        raise InputError(f"{top}: no result file in this folder")
    if skipped:
        text = f"{top}: not results, ignored: {', '.join(skipped)}"
        results.warnings.append(Note("ignored_files", text))
    return _with_provenance(results, top)


def _result_files(top: Path) -> list[Path]:
    of_bench = (top / "runs").is_dir() or (top / recordings.MANIFEST).is_file()
    rooms = [top / room for room in _BENCH_ROOMS if (top / room).is_dir()] if of_bench else []
    files = [path for room in rooms or [top] for path in sorted(room.rglob("*")) if _has_result_suffix(path)]
    files = [path for path in files if path.is_file() and path.name != recordings.MANIFEST]
    if any(_SWEEP_RUN.search(path.name) for path in files):
        # A sweep's summaries hold its runs once more.
        files = [path for path in files if path.stem != "summary"]
    return files


def _has_result_suffix(path: Path) -> bool:
    suffixes = [suffix.lower() for suffix in path.suffixes[-2:]]
    return bool(suffixes) and (
        suffixes[-1] in _SUFFIXES or (suffixes[-1] == ".gz" and suffixes[0] in _SUFFIXES)
    )


def _sweep_arm(path: Path, top: Path) -> str | None:
    """The SERVE parameters of a sweep's folder name its arm; its BENCH parameters name a cell."""
    for part in path.relative_to(top).parts[:-1]:
        if stated := _SERVE.match(part):
            return stated.group(1) or None
    return None


def _only_arm(files: list[Path], top: Path) -> str | None:
    """The folder's name where its files are one arm: a sweep of BENCH parameters, or runs that no cell has twice."""
    parts = [part for path in files for part in path.relative_to(top).parts[:-1]]
    if parts and all(part.startswith("BENCH--") for part in parts):
        return top.resolve().name
    if parts or len(files) < 2 or (top / recordings.MANIFEST).is_file():
        return None
    runs = [run for path in files for run in _runs_of(path)]
    cells = [(run.cell, run.load) for run in runs]
    alone = all(run.arm is None and run.known_cell and run.kind == "measured" for run in runs)
    one_model = len({run.model for run in runs}) == 1
    return (
        top.resolve().name
        if len(runs) > 2 and alone and one_model and len(set(cells)) == len(cells)
        else None
    )


def _runs_of(path: Path) -> list[Run]:
    try:
        return read_file(path).runs
    except InputError:
        return []


def _companions(top: Path) -> set[str]:
    """Files that the folder's manifest explains: those of them that are no results are none by intention."""
    return set(recordings.load_manifest(top).files) if (top / recordings.MANIFEST).is_file() else set()


def _name_within(path: Path, top: Path) -> str:
    inside = path.relative_to(top)
    rooms = [part for part in inside.parts[:-1] if part not in _BENCH_ROOMS]
    return rooms[0] if rooms else path.stem


def _with_provenance(results: Results, top: Path) -> Results:
    """Kind and device from the folder's manifest, where it has one."""
    if not (top / recordings.MANIFEST).is_file():
        return results
    manifest = recordings.load_manifest(top)
    results.runs = [
        replace(run, kind=manifest.kind, device=run.device or manifest.device) for run in results.runs
    ]
    arms = manifest.parameters.get("arms")
    roles = (
        {name: arm.get("role") for name, arm in arms.items() if isinstance(arm, dict)}
        if isinstance(arms, dict)
        else {}
    )
    results.accuracies = [replace(item, role=roles.get(item.arm)) for item in results.accuracies]
    return results


def read_file(path: Path) -> Results:
    """Sniff the content and read it. Raises InputError (NotAResult where the content is of another kind)."""
    check_regular(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    return read_text(_text_of(data, path), str(path))


def _text_of(data: bytes, path: Path) -> str:
    """The file's text: unpacked where it is gzip, UTF-16 where its first bytes say so, without a terminal's colours."""
    if data.startswith(b"\x1f\x8b"):
        try:
            with gzip.open(io.BytesIO(data)) as packed:
                data = packed.read(_PACKED_LIMIT + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(f"{path}: not whole gzip ({error})") from error
        if len(data) > _PACKED_LIMIT:
            raise InputError(f"{path}: unpacks to more than {_PACKED_LIMIT >> 20} MiB")
    wide = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    if b"\0" in data and not wide:
        raise NotAResult(f"{path}: binary file")
    text = data.decode("utf-16" if wide else "utf-8-sig", errors="replace")
    return _LOG_PREFIX.sub("", _ANSI.sub("", text))


def read_text(text: str, where: str) -> Results:
    """As `read_file`, for text that is already here."""
    if not text.strip():
        raise InputError(f"{where}: empty file")
    if text.lstrip()[0] in "{[" and not (_is_log(text) or looks_pasted(text)):
        return _from_objects(_decode(text, where), where)
    if looks_like_client_text(text):
        return Results(runs=runs_from_text(text, where))
    if _looks_like_table(text):
        return Results(runs=_runs_from_table(text, where))
    if looks_pasted(text):
        runs, accuracies = read_pasted(text, where)
        return Results(runs=runs, accuracies=accuracies)
    if _looks_like_summary(text):
        return _from_objects(list(csv.DictReader(io.StringIO(text, newline=""))), where)
    raise NotAResult(
        f"{where}: neither a benchmark result, a client's log, a published table nor an lm_eval result"
    )


def _is_log(text: str) -> bool:
    """A log may begin with "[time] ...": its first line is no JSON, but a result block follows."""
    try:
        json.JSONDecoder().raw_decode(text.lstrip())
    except (ValueError, RecursionError):
        return looks_like_client_text(text)
    return False


def _number(text: str) -> int | float:
    """A count that some tool wrote as 32.0 is the whole number."""
    value = float(text)
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


def _decode(text: str, where: str) -> list[Any]:
    """Every JSON value of the file: the client's --append-result writes one after the other."""
    decoder, position, values = json.JSONDecoder(parse_float=_number), 0, []
    body = text.strip()
    while position < len(body):
        try:
            value, position = decoder.raw_decode(body, position)
        except json.JSONDecodeError as error:
            raise InputError(
                f"{where}: not whole JSON (line {error.lineno}, column {error.colno})"
            ) from error
        except (ValueError, RecursionError) as error:
            raise InputError(f"{where}: not usable JSON ({type(error).__name__})") from error
        values += value if isinstance(value, list) else [value]
        while position < len(body) and body[position].isspace():
            position += 1
    return values


def _from_objects(objects: list[Any], where: str) -> Results:
    results = Results()
    for index, raw in enumerate(objects, start=1):
        name = where if len(objects) == 1 else f"{where} record {index}"
        if looks_like_run(raw):
            if str(raw.get("run_number")) == "-1":
                results.warnings.append(Note("warm_up", f"{name}: a sweep's warm-up, no run"))
                continue
            results.runs.append(run_from_json(raw, name))
        elif looks_like_accuracy(raw):
            results.accuracies += accuracies_from_json(raw, name)
        elif looks_like_answers(raw):
            results.answers.append(answers_from_json(raw, name))
        else:
            raise NotAResult(f"{name}: JSON, but no benchmark result, lm_eval result or greedy answers")
    if not objects:
        raise NotAResult(f"{where}: an empty list")
    return results


# Published tables: CSV with isl, osl, concurrency, config and the metric columns, read without losing a digit.


def _looks_like_table(text: str) -> bool:
    """Whether the first line names concurrency, config and at least one column with a unit."""
    header = [name.strip() for name in text.lstrip("\ufeff").split("\n", 1)[0].split(",")]
    return {"concurrency", "config"} <= set(header) and any(map(_has_unit, header))


def _looks_like_summary(text: str) -> bool:
    """Whether the first line names the keys of the client's result: the summary of `vllm bench sweep`."""
    header = dict.fromkeys(name.strip() for name in text.split("\n", 1)[0].split(","))
    return looks_like_run(header)


def _has_unit(column: str) -> bool:
    return column.endswith(("_ns", "_us", "_ms", "_s"))


def _runs_from_table(text: str, where: str) -> list[Run]:
    """One Run per line; an empty cell is a number that was not published. Raises InputError with the line."""
    try:
        reader = csv.DictReader(
            io.StringIO(text.lstrip("\ufeff"), newline=""), strict=True, skipinitialspace=True
        )
        names = [name.strip() for name in reader.fieldnames or []]
        rows = list(reader)
    except csv.Error as error:
        raise InputError(f"{where}: not CSV ({error})") from error
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InputError(f"{where} line 1: column {twice[0]!r} is there twice")
    if odd := [name for name in names if _has_unit(name) and name not in METRICS]:
        known = ", ".join((*_TABLE_KEYS, *METRICS))
        raise InputError(f"{where} line 1: unknown column or unit {odd[0]!r} (known: {known})")
    if not rows:
        raise InputError(f"{where}: a header and no row")
    return [_table_run(row, f"{where} line {number}") for number, row in enumerate(rows, start=2)]


def _table_run(row: dict[str, str | None], where: str) -> Run:
    if None in row or None in row.values():
        raise InputError(f"{where}: another number of columns than the header")
    cells = {str(name).strip(): str(value).strip() for name, value in row.items()}
    printed = {name: cells[name] for name in METRICS if cells.get(name)}
    if not cells.get("config"):
        raise InputError(f"{where}: config is empty")
    numbers = {name: _finite(text, name, where) for name, text in printed.items()}
    return Run(
        source=where,
        arm=cells["config"],
        isl=_size(cells.get("isl", ""), "isl", where),
        osl=_size(cells.get("osl", ""), "osl", where),
        concurrency=_size(cells.get("concurrency", ""), "concurrency", where),
        values={name: value for name, value in numbers.items() if possible(value)},
        impossible={name: value for name, value in numbers.items() if not possible(value)},
        printed={name: text for name, text in printed.items() if possible(numbers[name])},
        kind="published",
    )


def _size(text: str, key: str, where: str) -> int | None:
    if text == "":
        return None
    if not text.isdecimal() or not int(text[:16]) > 0 or len(text) > 12:
        raise InputError(f"{where}: {key} is {text[:40]!r}, a positive whole number was expected")
    return int(text)


def _finite(text: str, key: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(f"{where}: {key} is {text[:40]!r}, a number was expected")
    return value
