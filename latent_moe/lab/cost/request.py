"""What `latent-moe predict` is asked: options, the manifest beside the table and defaults, checked and put together."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from latent_moe import config as configs
from latent_moe.errors import InputError, unknown
from latent_moe.lab import recordings
from latent_moe.lab.cost import hardware, runs, throughput_table
from latent_moe.lab.cost.predict import Setup
from latent_moe.lab.cost.tail import TAIL_NAMES, check_case
from latent_moe.tail_variants.registry import AUTO

DEFAULTS: dict[str, Any] = {
    "tp": 8,
    "layers": 92,
    "budget": 16384,
    "preset": "kimi-k3",
    "baseline": "main",
    "candidate": "PR",
    "hardware": "mi355x",
}
WHOLE, TEXT, OBJECTS = ("tp", "layers", "budget"), ("preset", "hardware", "tails"), ("arms", "config")
# What the manifest beside a table calls the same things.
MANIFEST_NAMES = {"moe_layers": "layers", "max_num_batched_tokens": "budget"}
USUAL_TAILS = {"baseline": "replicated", "candidate": "column_parallel"}


@dataclass(frozen=True)
class Question:
    """The rows of the table, everything that is given by name, and what both say together.

    `tails` are those of the baseline's and the candidate's arm; `left_out` names rows that are not compared, `notes` what
    was taken for granted.
    """

    rows: list[throughput_table.Row]
    given: dict[str, Any]
    setup: Setup
    config: configs.LatentMoEConfig
    tails: tuple[str, str]
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def read(options: Mapping[str, Any]) -> Question:
    """`options`: table, and any of the verb's options (None: from the manifest, else default).

    Raises InputError for what cannot be used, with the option or the file and its key.
    """
    path = options["table"]
    asked = {key: value for key, value in options.items() if value is not None}
    _check_asked(asked)
    recorded = runs.read(path) if _has_runs(path) else None
    rows = throughput_table.read(path) if recorded is None else recorded.rows
    given = DEFAULTS | (manifest := _manifest(path)) | asked
    if recorded is not None:
        _check_complete(path, manifest, asked)
        given |= _arms(path, recorded.arms, asked)
    _check_machine(given, asked)
    setup = Setup(*(given[name] for name in ("tp", "layers", "budget", "baseline", "candidate")))
    _check_setup(setup)
    _check_candidate(rows, setup, asked)
    config = _config(given, asked)
    check_case(1, setup.tp, config)
    tails, notes = _tails(given, recorded is not None)
    left_out = () if recorded is None else _left_out(recorded)
    return Question(rows, given, setup, config, tails, left_out, notes)


def _has_runs(path: str) -> bool:
    """Whether the rows are those of result files, not of a table."""
    folder = Path(path)
    return folder.is_dir() and not (folder / "table.csv").is_file() and runs.is_recording(folder)


def _check_asked(asked: Mapping[str, Any]) -> None:
    empty = [name for name, value in asked.items() if value == ""]
    if empty:
        raise InputError(f"--{empty[0]} is empty")
    if asked.get("anchor") is not None and asked.get("tails"):
        raise InputError(
            "--anchor takes the savings from the table's own rows: leave out --tails or --anchor"
        )


def _check_complete(path: str, manifest: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    """Runs of somebody's server are not those of the published machine: nothing about them is guessed."""
    missing = [name for name in (*WHOLE, "hardware") if name not in manifest and name not in asked]
    if "machine" in asked or manifest.get("table_device"):
        missing = [name for name in missing if name != "hardware"]
    if missing:
        words = ", ".join(f"--{name}" for name in missing)
        raise InputError(f"{path}: no manifest there says how these runs were made: give {words}")


def _arms(path: str, arms: Mapping[str, list[str]], asked: Mapping[str, Any]) -> dict[str, Any]:
    """Of result files: the baseline's arm and the candidate's. Several candidates are never taken together."""
    found = {}
    for role, names in arms.items():
        if role in asked:
            continue
        if not names:
            raise InputError(f"{path}: no runs of an arm that is the {role}")
        if len(names) > 1:
            raise InputError(
                f"{path} has several arms as {role}: say --{role} (there are: {', '.join(names)})"
            )
        found[role] = names[0]
    return found


def _check_machine(given: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    """A table that says on what it was measured is not predicted for another machine unless that is asked for."""
    chosen = asked.get("hardware") or asked.get("machine") or asked.get("tails")
    if given.get("table_device") and not given.get("table_hardware") and not chosen:
        known = ", ".join(hardware.known())
        raise InputError(
            f"the table is of {given['table_device']}, which is not known here: say --hardware (here, {known})"
        )


def _check_setup(setup: Setup) -> None:
    if setup.tp == 1:
        raise InputError("tp 1: one rank has nothing to shard, the change does nothing there")
    if setup.baseline == setup.candidate:
        raise InputError(f"baseline and candidate are both {setup.baseline!r}")
    for name in ("layers", "budget"):
        if getattr(setup, name) < 1:
            raise InputError(f"{name} {getattr(setup, name)} must be at least 1")


def _check_candidate(rows: list[throughput_table.Row], setup: Setup, asked: Mapping[str, Any]) -> None:
    if "candidate" in asked and not throughput_table.of_config(rows, setup.candidate):
        known = ", ".join(sorted({row.config for row in rows} - {setup.baseline})) or "none"
        raise InputError(f"the table has no rows of candidate {setup.candidate!r} (there are: {known})")


def _manifest(path: str) -> dict[str, Any]:
    """What the manifest beside the table gives, under the options' names. Raises InputError for a value of a wrong kind."""
    folder = Path(path) if Path(path).is_dir() else Path(path).parent
    if not (folder / recordings.MANIFEST).is_file():
        return {}
    manifest = recordings.load_manifest(folder)
    named = {MANIFEST_NAMES.get(key, key): value for key, value in manifest.parameters.items()}
    known = (*DEFAULTS, "arms", "config", "tails", "isl", "osl")
    found = {key: value for key, value in named.items() if key in known and value is not None}
    _check_manifest(found, f"{folder / recordings.MANIFEST}: parameters")
    measured_on = found.get("hardware") or hardware.of_device(manifest.device)
    about = {"table_kind": manifest.kind, "table_hardware": measured_on, "table_device": manifest.device}
    about["table_tp"] = found.get("tp")
    return found | about | ({"hardware": measured_on} if measured_on else {})


def _check_manifest(found: Mapping[str, Any], where: str) -> None:
    for name, value in found.items():
        if name in WHOLE and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise InputError(f"{where}: {name} is {value!r}, a positive whole number was expected")
        if name in TEXT and not isinstance(value, str):
            raise InputError(f"{where}: {name} is {value!r}, text was expected")
        if name in OBJECTS and not isinstance(value, dict):
            raise InputError(f"{where}: {name} is {value!r}, an object was expected")
    for arm, about in found.get("arms", {}).items():
        if not isinstance(about, dict) or not isinstance(about.get("tail"), str | None):
            raise InputError(
                f"{where}: arms: {arm} is {about!r}, an object with the tail's name was expected"
            )


def _config(given: Mapping[str, Any], asked: Mapping[str, Any]) -> configs.LatentMoEConfig:
    chosen = configs.preset(given["preset"])
    if "preset" in asked:
        return chosen
    return chosen.replace(**given.get("config", {}))


def _tails(given: Mapping[str, Any], of_runs: bool) -> tuple[tuple[str, str], tuple[str, ...]]:
    """((the baseline's tail, the candidate's), what had to be assumed): the manifest's word, else the arm's own name,
    else those of the change."""
    found, notes = {}, []
    for role, usual in USUAL_TAILS.items():
        name = given[role]
        stated = (given.get("arms", {}).get(name) or {}).get("tail")
        found[role] = stated or (name if name in (*TAIL_NAMES, AUTO) else usual)
        if found[role] not in (*TAIL_NAMES, AUTO):
            raise InputError(f"arm {name}: {unknown('tail', stated, (*TAIL_NAMES, AUTO))}")
        if of_runs and not stated and name != found[role]:
            notes.append(f"nothing says which tail the arm {name} runs: taken as {found[role]}")
    if found["baseline"] == found["candidate"]:
        both = f"{given['baseline']} and {given['candidate']}"
        raise InputError(f"{both} both run the tail {found['baseline']}: nothing to predict")
    return (found["baseline"], found["candidate"]), tuple(notes)


def _left_out(recorded: runs.Recorded) -> tuple[str, ...]:
    """Rows that are not compared, with the reason."""
    left = recorded.left_out.items()
    return tuple(f"{arm} at concurrency {conc}: {why}" for (_, _, conc, arm), why in left)
