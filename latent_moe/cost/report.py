"""One question of `latent-moe predict` answered: options and manifest in, a plain dict out."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from latent_moe import config as configs
from latent_moe import profiles
from latent_moe.cost import constants, hardware, recordings, runs, savings, table
from latent_moe.cost.predict import SCORED, Predicted, Prediction, Setup, predict_table
from latent_moe.cost.tail import check_case
from latent_moe.errors import InputError

DEFAULTS: dict[str, Any] = {
    "tp": 8,
    "layers": 92,
    "budget": 16384,
    "preset": "kimi-k3",
    "baseline": "main",
    "candidate": "PR",
}
DEFAULTS |= {"hardware": "mi355x"}
# What the manifest beside a table calls the same things.
OF_MANIFEST = ("arms", "config", "tails", "isl", "osl")
MANIFEST_NAMES = {"moe_layers": "layers", "max_num_batched_tokens": "budget"}


def predict(options: Mapping[str, Any]) -> dict[str, Any]:
    """Answer for a table. `options`: table, and any of the verb's options (None: from the manifest, else default);
    `machine`, a Hardware, goes before the name of one.

    Raises InputError for an unusable table, unknown hardware, or a tp that does not divide the hidden size.
    """
    rows = _rows(options["table"])
    asked = {key: value for key, value in options.items() if value is not None}
    given = DEFAULTS | _manifest(options["table"]) | _arms(options["table"], asked) | asked
    _check_machine(options, given)
    config = _config(given)
    setup = Setup(*(given[name] for name in ("tp", "layers", "budget", "baseline", "candidate")))
    _check(setup)
    if options.get("candidate") is not None and not table.of_config(rows, setup.candidate):
        known = ", ".join(sorted({row.config for row in rows}))
        raise InputError(f"the table has no rows of candidate {setup.candidate!r} (there are: {known})")
    check_case(1, setup.tp, config)
    machine = given.get("machine") or hardware.get(given["hardware"], _constants(given))
    prediction = predict_table(rows, _savings(given, machine, config), setup, given.get("anchor"))
    return _answer(prediction, given, machine)


def _rows(path: str) -> list[table.Row]:
    return runs.read(path) if _has_runs(path) else table.read(path)


def _has_runs(path: str) -> bool:
    """Whether the rows are those of result files, not of a table."""
    folder = Path(path)
    return folder.is_dir() and not (folder / "table.csv").is_file() and runs.is_recording(folder)


def _arms(path: str, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Of result files: the baseline's arm and the candidate's. Several candidates are never taken together."""
    if not _has_runs(path):
        return {}
    found = {}
    for role, names in runs.arms(path).items():
        if role not in asked and len(names) > 1:
            raise InputError(
                f"{path} has several arms as {role}: say --{role} (there are: {', '.join(names)})"
            )
        found[role] = names[0] if names else role
    return found


def _check_machine(options: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """A table that says on what it was measured is not predicted for another machine unless that is asked for."""
    asked = options.get("hardware") or options.get("machine") or options.get("tails")
    if given.get("table_device") and not given.get("table_hardware") and not asked:
        known = ", ".join(hardware.known())
        raise InputError(
            f"the table is of {given['table_device']}, which is not known here: say --hardware (here, {known})"
        )


def _check(setup: Setup) -> None:
    if setup.tp == 1:
        raise InputError("tp 1: one rank has nothing to shard, the change does nothing there")
    if setup.baseline == setup.candidate:
        raise InputError(f"baseline and candidate are both {setup.baseline!r}")
    for name in ("layers", "budget"):
        if getattr(setup, name) < 1:
            raise InputError(f"{name} {getattr(setup, name)} must be at least 1")


def _manifest(path: str) -> dict[str, Any]:
    folder = Path(path) if Path(path).is_dir() else Path(path).parent
    if not (folder / profiles.MANIFEST).is_file():
        return {}
    manifest = profiles.load_manifest(folder)
    named = {MANIFEST_NAMES.get(key, key): value for key, value in manifest.parameters.items()}
    found = {key: value for key, value in named.items() if key in (*DEFAULTS, *OF_MANIFEST)}
    measured_on = found.get("hardware") or hardware.of_device(manifest.device)
    about = {"table_kind": manifest.kind, "table_hardware": measured_on, "table_device": manifest.device}
    return found | about | ({"hardware": measured_on} if measured_on else {})


def _config(given: Mapping[str, Any]) -> configs.LatentMoEConfig:
    chosen = configs.preset(given["preset"])
    sizes = given.get("config") or {}
    return chosen.replace(**sizes) if isinstance(sizes, dict) else chosen


def _constants(given: Mapping[str, Any]) -> dict | None:
    return constants.load(given["constants"]) if given.get("constants") else None


def _savings(given: Mapping[str, Any], machine: hardware.Hardware, config) -> savings.Savings:
    before, after = _tails(given)
    if not given.get("tails"):
        return savings.modelled(machine, given["tp"], config, before, after)
    return savings.recorded(recordings.read(given["tails"]), given["tp"], before, after)


def _tails(given: Mapping[str, Any]) -> tuple[str, str]:
    """The tails of the baseline's and the candidate's arm: the manifest's word, else those of the change."""
    arms = given.get("arms") or {}
    usual = {"baseline": "replicated", "candidate": "column_parallel"}
    before, after = ((arms.get(given[role]) or {}).get("tail") or tail for role, tail in usual.items())
    if before == after:
        raise InputError(
            f"{given['baseline']} and {given['candidate']} both run the tail {before}: nothing to predict"
        )
    return before, after


def _answer(prediction: Prediction, given: Mapping[str, Any], machine: hardware.Hardware) -> dict[str, Any]:
    return {
        "rows": [_row(row) for row in prediction.rows],
        "mae_pp": prediction.mae_pp(),
        "no_change_pp": prediction.no_change_pp(),
        "prefill_step_ms": prediction.prefill_step_ms,
        "hardware": machine.name,
        "table_kind": given.get("table_kind"),
        "table_hardware": given.get("table_hardware"),
        "anchor": given.get("anchor"),
        "savings_from": _source(given),
        **{name: given[name] for name in ("tp", "layers", "budget")},
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
        "kind": row.kind,
        "saving_us_per_layer": {"prefill_step": row.prefill_us, "decode_step": row.decode_us},
        "notes": list(row.notes),
    }


def text(answer: Mapping[str, Any]) -> str:
    """The answer for people: one line a concurrency, predicted change beside the published one."""
    lines = [f"{answer['hardware']}, tp {answer['tp']}: savings from the {answer['savings_from']}"]
    lines.append(f"{'conc':>5}" + "".join(f"{name:>30}" for name in SCORED))
    lines += [
        f"{row['concurrency']:>5}"
        + "".join(f"{_cell(row, name, answer.get('table_kind') or 'table'):>30}" for name in SCORED)
        for row in answer["rows"]
    ]
    lines.append("mean absolute error, percentage points: " + _errors(answer["mae_pp"]))
    if answer.get("table_hardware") not in (None, answer["hardware"]):
        lines.append(
            f"the table is of {answer['table_hardware']}: savings on {answer['hardware']} are set against its steps, so these "
            "changes are those of neither machine; give --table with rows of your own (runs of `bench` or a CSV)"
        )
    lines += [f"concurrency {row['concurrency']}: {note}" for row in answer["rows"] for note in row["notes"]]
    return "\n".join(lines)


def _cell(row: Mapping[str, Any], name: str, kind: str) -> str:
    known = (row["published_delta_pct"] or {}).get(name)
    beside = "" if known is None else f" ({kind} {known:+.2f} %)"
    return f"{row['delta_pct'][name]:+.2f} %{beside}"


def _errors(errors: Mapping[str, float | None]) -> str:
    return ", ".join(
        f"{name} {'unknown' if value is None else f'{value:.2f}'}" for name, value in errors.items()
    )
