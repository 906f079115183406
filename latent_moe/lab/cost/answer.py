"""One question of `latent-moe predict` answered: options, manifest and defaults in, a plain dict out."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import stdev
from typing import Any

from latent_moe import config as configs
from latent_moe.errors import InputError, unknown
from latent_moe.lab import recordings
from latent_moe.lab.cost import hardware, savings, tail_timings
from latent_moe.lab.cost.bands import Bands, PairNoise, sensitivity
from latent_moe.lab.cost.predict import (
    SCORED,
    ArmRow,
    Predicted,
    Prediction,
    Setup,
    anchored_on,
    predict_table,
    two_constants_pp,
)
from latent_moe.lab.cost.tail import MODELLED
from latent_moe.lab.cost.terms import check_case
from latent_moe.lab.results import METRICS, Results, Run, read_results
from latent_moe.lab.results.comparison import Cell, cells_of, choose_arms
from latent_moe.lab.results.validity import mean_value
from latent_moe.tail_variants.registry import AUTO

# The name of the table in a published recording.
TABLE = "table.csv"
DEFAULTS: dict[str, Any] = {
    "tp": 8,
    "layers": 92,
    "budget": 16384,
    "preset": "kimi-k3",
    "baseline": "main",
    "candidate": "PR",
    "hardware": "mi355x",
    "shard_from": 1,
}
WHOLE, TEXT, OBJECTS = (
    ("tp", "layers", "budget", "shard_from"),
    ("preset", "hardware", "tails"),
    ("arms", "config"),
)
# What the manifest beside a table calls the same things.
MANIFEST_NAMES = {"moe_layers": "layers", "max_num_batched_tokens": "budget"}
USUAL_TAILS = {"baseline": "replicated", "candidate": "column_parallel"}


@dataclass(frozen=True)
class Request:
    """The rows of the table, everything that is given by name, and what both say together.

    `tails` are those of the baseline's and the candidate's arm; `left_out` names rows that are not compared, `notes` what
    was taken for granted.
    """

    rows: list[ArmRow]
    given: dict[str, Any]
    setup: Setup
    config: configs.LatentMoEConfig
    tails: tuple[str, str]
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    noise: Mapping[tuple, PairNoise] = field(default_factory=dict)


def read_request(options: Mapping[str, Any]) -> Request:
    """`options`: table, and any of the verb's options (None: from the manifest, else default).

    Raises InputError for what cannot be used, with the option or the file and its key.
    """
    path = Path(options["table"])
    asked = {key: value for key, value in options.items() if value is not None}
    _check_asked(asked)
    of_runs = _of_runs(path)
    results = _read(path)
    given = DEFAULTS | (manifest := _manifest(path)) | asked
    if of_runs:
        _check_complete(path, manifest, asked)
        given |= _arms(path, results, asked)
    _check_machine(given, asked)
    setup = Setup(*(given[name] for name in ("tp", "layers", "budget", "baseline", "candidate")))
    _check_setup(setup)
    rows, left_out = arm_rows(results, setup, asked)
    config = _config(given, asked)
    check_case(1, setup.tp, config)
    tails, notes = _tails(given, of_runs)
    return Request(rows, given, setup, config, tails, left_out, notes, _noise(results, setup))


def _of_runs(path: Path) -> bool:
    """Whether the rows are those of result files, not of a table."""
    return path.is_dir() and not (path / TABLE).is_file()


def _read(path: Path) -> Results:
    return read_results([path / TABLE if path.is_dir() and not _of_runs(path) else path])


def table_rows(path: str | Path, setup: Setup | None = None) -> list[ArmRow]:
    """The usable rows of a table or of result files (see `arm_rows`)."""
    return arm_rows(_read(Path(path)), setup or Setup())[0]


def arm_rows(
    results: Results, setup: Setup, asked: Mapping[str, Any] | None = None
) -> tuple[list[ArmRow], tuple[str, ...]]:
    """The two arms as rows, and what is left out: by the cells, means and reasons of `latent-moe table`.

    A candidate that cannot be compared leaves the baseline's row to be predicted; a baseline that cannot takes both out.
    Raises InputError for an arm that is not there, and where no row of the baseline is left.
    """
    arms = list(dict.fromkeys(run.arm or "?" for run in results.runs))
    if setup.baseline not in arms:
        raise unknown("baseline", setup.baseline, arms)
    if setup.candidate not in arms and "candidate" in (asked or {}):
        raise unknown("candidate", setup.candidate, [arm for arm in arms if arm != setup.baseline])
    rows: list[ArmRow] = []
    left_out: list[str] = []
    two_arms = setup.candidate in arms
    for cell in cells_of(results, setup.baseline, setup.candidate)[1]:
        reasons = _reasons(cell, two_arms)
        usable = bool(cell.baseline) and not (reasons and _baseline_refused(cell))
        if usable:
            before, after = (tuple(cell.baseline), ()) if reasons or not two_arms else cell.sides()
            rows += [
                _arm_row(runs, arm) for runs, arm in zip((before, after), _both(setup), strict=True) if runs
            ]
        refused = [
            arm for arm, runs in zip(_both(setup), (cell.baseline, cell.candidate), strict=True) if runs
        ]
        if reasons:
            refused = refused if not usable else [setup.candidate]
            left_out += [f"{arm} at concurrency {cell.concurrency}: {'; '.join(reasons)}" for arm in refused]
    if not rows:
        raise InputError(f"no row of the baseline {setup.baseline!r} can be used: {'; '.join(left_out)}")
    return rows, tuple(left_out)


def _noise(results: Results, setup: Setup) -> dict[tuple, PairNoise]:
    """By cell, where several pairs of runs show it."""
    noise = {}
    for cell in cells_of(results, setup.baseline, setup.candidate)[1]:
        ratios = {name: [pair.log_ratio(name) for pair in cell.pairs] for name in SCORED}
        known = {name: [ratio for ratio in values if ratio is not None] for name, values in ratios.items()}
        if all(len(values) > 1 for values in known.values()):
            spread = {name: stdev(values) for name, values in known.items()}
            noise[cell.baseline[0].cell] = PairNoise(spread, len(cell.pairs))
    return noise


def _both(setup: Setup) -> tuple[str, str]:
    return setup.baseline, setup.candidate


def _reasons(cell: Cell, two_arms: bool) -> list[str]:
    """The table's reasons against the metrics that are predicted, and what the closed form cannot do without."""
    reasons = [text for name in SCORED for text in cell.reasons(name, two_arms)]
    if not reasons and not (cell.baseline or cell.candidate)[0].known_cell:
        reasons = ["unknown lengths or concurrency: never pooled with other runs"]
    if not reasons and cell.concurrency is None:
        reasons = ["no limit of concurrency: the closed form needs one"]
    if not reasons:
        lacking = (name for name in SCORED if mean_value(tuple(cell.baseline), name) is None)
        reasons = [f"{name} is missing" for name in lacking]
    return list(dict.fromkeys(reasons))


def _baseline_refused(cell: Cell) -> bool:
    """Whether the reasons against a cell are its baseline's, so that there is nothing to predict from."""
    lacking = any(mean_value(tuple(cell.baseline), name) is None for name in SCORED)
    return bool(cell.baseline_faults) or lacking or None in cell.baseline[0].cell


def _arm_row(runs: tuple[Run, ...], arm: str) -> ArmRow:
    isl, osl, concurrency = runs[0].cell
    means = {name: mean_value(runs, name) for name in METRICS}
    known = {name: value for name, value in means.items() if value is not None}
    return ArmRow(isl or 0, osl or 0, concurrency or 0, arm, known)


def _check_asked(asked: Mapping[str, Any]) -> None:
    empty = [name for name, value in asked.items() if value == ""]
    if empty:
        raise InputError(f"--{empty[0]} is empty")
    if asked.get("shard_from", 1) < 1:
        raise InputError(f"--shard-from {asked['shard_from']} must be at least 1")
    if asked.get("anchor") is not None and asked.get("tails"):
        raise InputError(
            "--anchor takes the savings from the table's own rows: leave out --tails or --anchor"
        )


def _check_complete(path: Path, manifest: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    """Runs of somebody's server are not those of the published machine: nothing about them is guessed."""
    missing = [
        name for name in ("tp", "layers", "budget", "hardware") if name not in manifest and name not in asked
    ]
    if "machine" in asked or manifest.get("table_device"):
        missing = [name for name in missing if name != "hardware"]
    if missing:
        words = ", ".join(f"--{name}" for name in missing)
        raise InputError(f"{path}: no manifest there says how these runs were made: give {words}")


def _arms(path: Path, results: Results, asked: Mapping[str, Any]) -> dict[str, str]:
    """Of result files: the baseline's arm and the candidate's. Several candidates are never taken together."""
    roles = {role: {run.arm for run in results.runs if run.role == role} for role in USUAL_TAILS}
    if not any(roles.values()):
        left, right = choose_arms(results, asked.get("baseline"), asked.get("candidate"))
        return {"baseline": left or "?"} | ({"candidate": right} if right else {})
    chosen = {}
    for role, arms in roles.items():
        names = sorted(arm or "?" for arm in arms)
        if role in asked:
            continue
        if not names:
            raise InputError(f"{path}: no runs of an arm that is the {role}")
        if len(names) > 1:
            raise InputError(
                f"{path} has several arms as {role}: say --{role} (there are: {', '.join(names)})"
            )
        chosen[role] = names[0]
    return chosen


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


def _manifest(path: Path) -> dict[str, Any]:
    """What the manifest beside the table gives, under the options' names. Raises InputError for a value of a wrong kind."""
    folder = path if path.is_dir() else path.parent
    if not (folder / recordings.MANIFEST).is_file():
        return {}
    manifest = recordings.load_manifest(folder)
    named = {MANIFEST_NAMES.get(key, key): value for key, value in manifest.parameters.items()}
    known = (*DEFAULTS, "arms", "config", "tails", "isl", "osl")
    stated = {key: value for key, value in named.items() if key in known and value is not None}
    _check_manifest(stated, f"{folder / recordings.MANIFEST}: parameters")
    measured_on = stated.get("hardware") or hardware.of_device(manifest.device)
    about = {"table_kind": manifest.kind, "table_hardware": measured_on, "table_device": manifest.device}
    about["table_tp"] = stated.get("tp")
    return stated | about | ({"hardware": measured_on} if measured_on else {})


def _check_manifest(stated: Mapping[str, Any], where: str) -> None:
    for name, value in stated.items():
        if name in WHOLE and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise InputError(f"{where}: {name} is {value!r}, a positive whole number was expected")
        if name in TEXT and not isinstance(value, str):
            raise InputError(f"{where}: {name} is {value!r}, text was expected")
        if name in OBJECTS and not isinstance(value, dict):
            raise InputError(f"{where}: {name} is {value!r}, an object was expected")
    for arm, about in stated.get("arms", {}).items():
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
    tails, notes = {}, []
    for role, usual in USUAL_TAILS.items():
        name = given[role]
        stated = (given.get("arms", {}).get(name) or {}).get("tail")
        stated = given.get(f"{role}_tail") or stated
        tails[role] = stated or (name if name in (*MODELLED, AUTO) else usual)
        if tails[role] not in (*MODELLED, AUTO):
            raise InputError(f"arm {name}: {unknown('tail', stated, (*MODELLED, AUTO))}")
        if of_runs and not stated and name != tails[role]:
            notes.append(f"nothing says which tail the arm {name} runs: taken as {tails[role]}")
    if tails["baseline"] == tails["candidate"]:
        both = f"{given['baseline']} and {given['candidate']}"
        raise InputError(f"{both} both run the tail {tails['baseline']}: nothing to predict")
    return (tails["baseline"], tails["candidate"]), tuple(notes)


def predict(options: Mapping[str, Any]) -> dict[str, Any]:
    """Answer for a table. `options`: table, and any of the verb's options (None: from the manifest, else default);
    `machine`, a Hardware, goes before the name of one.

    Raises InputError for an unusable table, unknown hardware, or a tp that does not divide the hidden size.
    """
    request = read_request(options)
    given = request.given
    machine = given.get("machine") or hardware.get(given["hardware"], _constants(given))
    saving, anchor = _savings(request, machine), given.get("anchor")
    prediction = predict_table(request.rows, saving, request.setup, anchor)
    if anchor is not None:
        saving = anchored_on(request.rows, request.setup, anchor)
    modelled = None if anchor is not None or given.get("tails") else _savings_of(request)
    spread = Bands(machine, saving, modelled, request.setup, _constants(given), anchor is not None)
    answer = _answer(prediction, given, machine)
    for row, shown in zip(prediction.rows, answer["rows"], strict=True):
        noise = request.noise.get(row.row.key)
        shown["band90_pct"] = spread.of_row(row.row, prediction.prefill_step_ms, noise)
    answer["baselines_pp"] = prediction.baselines_pp() | {
        "two_constants": two_constants_pp(request.rows, request.setup)
    }
    answer["inside_band"] = _inside(answer["rows"])
    concurrency = min(row.row.concurrency for row in prediction.rows)
    answer["sensitivity"] = sensitivity(machine, modelled, request.setup, concurrency) if modelled else []
    return answer | {"left_out": list(request.left_out), "assumed": list(request.notes)}


def _inside(rows: list[dict[str, Any]]) -> dict[str, int]:
    """How many known changes lie inside their bands, the anchor's left out."""
    held = [
        row["band90_pct"][name][0] <= row["published_delta_pct"][name] <= row["band90_pct"][name][1]
        for row in rows
        if row["published_delta_pct"] and not row["anchor"]
        for name in SCORED
    ]
    return {"inside": sum(held), "cells": len(held)}


def _savings_of(request: Request) -> Callable[[hardware.Hardware], savings.Savings]:
    about = (request.setup.tp, request.config, *request.tails, request.given["shard_from"])
    return lambda machine: savings.modelled(machine, *about)


def _constants(given: Mapping[str, Any]) -> dict | None:
    return hardware.load_constants(given["constants"]) if given.get("constants") else None


def _savings(request: Request, machine: hardware.Hardware) -> savings.Savings:
    tp, name = request.setup.tp, request.given.get("tails")
    if not name:
        return _savings_of(request)(machine)
    recorded = savings.recorded(tail_timings.read(name), tp, *request.tails, source=name)
    start = request.given["shard_from"]

    def saving(tokens: int, decode: bool) -> savings.Saving:
        return recorded(tokens, decode) if tokens >= start else savings.Saving(0.0, 0.0, "modelled")

    return saving


def _answer(prediction: Prediction, given: Mapping[str, Any], machine: hardware.Hardware) -> dict[str, Any]:
    return {
        "kind": "modelled",
        "rows": [_row(row) for row in prediction.rows],
        "mae_pp": prediction.mae_pp(),
        "no_change_pp": prediction.no_change_pp(),
        "prefill_step_ms": prediction.prefill_step_ms,
        "hardware": machine.name,
        "table_kind": given.get("table_kind"),
        "table_hardware": given.get("table_hardware"),
        "table_tp": given.get("table_tp"),
        "anchor": given.get("anchor"),
        "savings_from": _source(given),
        **{name: given[name] for name in ("tp", "layers", "budget", "shard_from")},
    }


def _source(given: Mapping[str, Any]) -> str:
    if given.get("anchor") is not None:
        return f"pair of rows at concurrency {given['anchor']}"
    return f"recording {given['tails']}" if given.get("tails") else "cost model"


def _row(row: Predicted) -> dict[str, Any]:
    beyond = [name for name in row.metrics if not math.isfinite(row.metrics[name])]
    beyond += [name for name, change in row.delta_pct.items() if not math.isfinite(change)]
    if beyond:
        where = f"isl {row.row.isl}, osl {row.row.osl}, concurrency {row.row.concurrency}"
        raise InputError(
            f"{where}: the table's numbers cannot be computed with ({beyond[0]} would not be finite)"
        )
    return {
        "isl": row.row.isl,
        "osl": row.row.osl,
        "concurrency": row.row.concurrency,
        "baseline": row.row.metrics,
        "predicted": row.metrics,
        "delta_pct": row.delta_pct,
        "uncertainty_pp": row.uncertainty_pp,
        "published_delta_pct": row.published_pct,
        "error_pp": row.error_pp,
        "anchor": row.anchor,
        "savings_kind": row.kind,
        "saving_us_per_layer": {"prefill_step": row.prefill_us, "decode_step": row.decode_us},
        "notes": list(row.notes),
    }


def text(answer: Mapping[str, Any]) -> str:
    """The answer for people: one line a concurrency, predicted change beside the published one."""
    lines = [f"{answer['hardware']}, tp {answer['tp']}: savings from the {answer['savings_from']}"]
    lines.append(
        f"{'conc':>5}"
        + "".join(f"{name:>30}" for name in SCORED)
        + "   saved per layer, us: prefill, decode step"
    )
    lines += [_line(row, answer.get("table_kind") or "table") for row in answer["rows"]]
    lines += _bands_text(answer["rows"])
    if any(value is not None for value in answer["mae_pp"].values()):
        lines += _scores(answer)
    return "\n".join(lines + _warnings(answer))


def _bands_text(rows: list[Mapping[str, Any]]) -> list[str]:
    lines = ["90 % bands (constants over their ranges, residuals of the model, noise of the machine):"]
    for row in rows:
        ends = (row["band90_pct"][name] for name in SCORED)
        lines.append(
            f"{row['concurrency']:>5}"
            + "".join(f"{f'{low:+.2f} to {high:+.2f} %':>30}" for low, high in ends)
        )
    return lines


def _scores(answer: Mapping[str, Any]) -> list[str]:
    """The error beside what simpler answers score, and how many known changes the bands hold."""
    shown = {
        "no_change": "predicting no change",
        "copied_row": "copying one row to another",
        "constant": "the best constant (fitted to these rows)",
        "two_constants": "two constant savings (fitted to these rows)",
    }
    inside = answer["inside_band"]
    return [
        "mean absolute error, percentage points: " + _errors(answer["mae_pp"]),
        *(f"  {text}: {_errors(answer['baselines_pp'][name])}" for name, text in shown.items()),
        f"{inside['inside']} of {inside['cells']} known changes lie inside their bands",
        "known biases: requests that do not arrive together make the TTFT's change smaller than predicted; in throughput "
        "an error of the prefill saving and one of the decode saving can cancel",
    ]


def _line(row: Mapping[str, Any], kind: str) -> str:
    saved = row["saving_us_per_layer"]
    cells = "".join(f"{_cell(row, name, kind):>30}" for name in SCORED)
    anchor = "   (the anchor: not scored)" if row["anchor"] else ""
    return (
        f"{row['concurrency']:>5}{cells}{saved['prefill_step']:>15.1f}{saved['decode_step']:>10.1f}{anchor}"
    )


def _warnings(answer: Mapping[str, Any]) -> list[str]:
    lines = [f"not compared: {text}" for text in answer.get("left_out", ())]
    if answer.get("table_hardware") not in (None, answer["hardware"]):
        lines.append(
            f"the table is of {answer['table_hardware']}: savings on {answer['hardware']} are set against its steps, so these "
            "changes are those of neither machine; give --table with rows of your own (runs of `bench` or a CSV)"
        )
    if answer.get("table_tp") not in (None, answer["tp"]):
        lines.append(
            f"the table is of tp {answer['table_tp']}: savings at tp {answer['tp']} are set against its steps, and the errors compare two tp"
        )
    if any(min(row["saving_us_per_layer"].values()) < 0 for row in answer["rows"]):
        lines.append(
            "a saving below zero says that the candidate is slower there, or that its rows are noise"
        )
    lines += answer.get("assumed", ())
    return lines + [
        f"concurrency {row['concurrency']}: {note}" for row in answer["rows"] for note in row["notes"]
    ]


def _cell(row: Mapping[str, Any], name: str, kind: str) -> str:
    known = (row["published_delta_pct"] or {}).get(name)
    beside = "" if known is None else f" ({kind} {known:+.2f} %)"
    return f"{row['delta_pct'][name]:+.2f} %{beside}"


def _errors(errors: Mapping[str, float | None]) -> str:
    return ", ".join(
        f"{name} {'unknown' if value is None else f'{value:.2f}'}" for name, value in errors.items()
    )
