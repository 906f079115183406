"""Paths, files and folders, into results, and the rule by which a run gets its arm.

An arm's name is what the file says (our `bench`, the client's --label, the `config` of a published table). Where it says
nothing, each PATH of the command is one arm named after it, and of a single folder each sub-folder is an arm, or each file.
"""

from dataclasses import replace
from pathlib import Path

from latent_moe.errors import InputError
from latent_moe.lab import recordings
from latent_moe.lab.results.files import NotAResult, Results, read_file
from latent_moe.lab.results.run import Warning

_SUFFIXES = {".json", ".jsonl", ".csv", ".log", ".txt", ".out"}
# The rooms of a `bench` folder that hold results; its logs and state repeat or precede them.
_BENCH_ROOMS = ("runs", "parity", "accuracy")


def read_results(paths: list[str | Path]) -> Results:
    """Read every path. Raises InputError where one cannot be used or nothing is found in it."""
    tops = [Path(path) for path in paths]
    results = Results()
    for top, name in zip(tops, _path_names(tops), strict=True):
        results.add(
            _read_folder(top, name if len(tops) > 1 else None) if top.is_dir() else _read_one(top, name)
        )
    return results


def _path_names(paths: list[Path]) -> list[str]:
    """A short name for each path: its stem, or as much of the path as tells it from the others."""
    names = [path.resolve().name if path.is_dir() else path.stem for path in paths]
    if len(set(names)) == len(names):
        return names
    return [path.with_suffix("").as_posix() for path in paths]


def _read_one(path: Path, name: str) -> Results:
    """A file by itself; of a recording where the manifest beside it names it."""
    results = read_file(path).named(name)
    try:
        named = path.name in _companions(path.parent)
    except InputError:
        # A broken manifest beside a file that was asked for by its name is none of this file's.
        named = False
    return _with_provenance(results, path.parent) if named else results


def _read_folder(top: Path, arm: str | None) -> Results:
    results, skipped = Results(), []
    known = _companions(top)
    for path in _candidates(top):
        try:
            results.add(read_file(path).named(arm or _name_within(path, top)))
        except NotAResult:
            if path.relative_to(top).as_posix() not in known:
                skipped.append(path.relative_to(top).as_posix())
    if not (results.runs or results.accuracies or results.answers):
        raise InputError(f"{top}: no result file in this folder")
    if skipped:
        results.warnings.append(
            Warning("ignored_files", f"{top}: not results, ignored: {', '.join(skipped)}")
        )
    return _with_provenance(results, top)


def _candidates(top: Path) -> list[Path]:
    rooms = [top / room for room in _BENCH_ROOMS] if (top / "runs").is_dir() else [top]
    files = [path for room in rooms for path in sorted(room.rglob("*")) if path.suffix.lower() in _SUFFIXES]
    return [path for path in files if path.is_file() and path.name != recordings.MANIFEST]


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
    return results
