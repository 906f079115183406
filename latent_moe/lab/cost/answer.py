"""One question of `latent-moe predict` answered: options and manifest in, a plain dict out."""

import math
from collections.abc import Mapping
from typing import Any

from latent_moe.errors import InputError
from latent_moe.lab.cost import constants, hardware, request, savings, tail_timings
from latent_moe.lab.cost.predict import SCORED, Predicted, Prediction, predict_table


def predict(options: Mapping[str, Any]) -> dict[str, Any]:
    """Answer for a table. `options`: table, and any of the verb's options (None: from the manifest, else default);
    `machine`, a Hardware, goes before the name of one.

    Raises InputError for an unusable table, unknown hardware, or a tp that does not divide the hidden size.
    """
    found = request.read(options)
    given = found.given
    machine = given.get("machine") or hardware.get(given["hardware"], _constants(given))
    prediction = predict_table(found.rows, _savings(found, machine), found.setup, given.get("anchor"))
    left = {"left_out": list(found.left_out), "assumed": list(found.notes)}
    return _answer(prediction, given, machine) | left


def _constants(given: Mapping[str, Any]) -> dict | None:
    return constants.load(given["constants"]) if given.get("constants") else None


def _savings(found: request.Question, machine: hardware.Hardware) -> savings.Savings:
    tp, name = found.setup.tp, found.given.get("tails")
    if not name:
        return savings.modelled(machine, tp, found.config, *found.tails)
    return savings.recorded(tail_timings.read(name), tp, *found.tails, source=name)


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
    lines.append("mean absolute error, percentage points: " + _errors(answer["mae_pp"]))
    return "\n".join(lines + _warnings(answer))


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
