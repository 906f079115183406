"""The tour's end-to-end result: what this tour measured or a recording that notebook 05 showed, beside the pull request's."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from latent_moe.errors import InputError
from latent_moe.lab.bench.session import gemm_line
from latent_moe.lab.plots.theme import of_manifest
from latent_moe.lab.recordings import MANIFEST, Manifest, folders, load_manifest, profile_path
from latent_moe.lab.report.execute import Executed
from latent_moe.lab.results import METRICS, PRIMARY, read_results
from latent_moe.lab.results.comparison import Row, Table, candidates, compare

NOTEBOOK = "05_"
PUBLISHED, H200 = "mi355x_pr51253", "h200x2_vllm"
SHOWN = (PRIMARY, "mean_ttft_ms", "mean_tpot_ms")
DASH = "–"


@dataclass(frozen=True)
class ArmsCompared:
    """A table of two arms and where it comes from. `recorded` is None for a run of this tour, else profiles/NAME."""

    manifest: Manifest
    table: Table
    recorded: str | None = None

    @property
    def whose(self) -> str:
        """Which run this is, for a heading."""
        if self.manifest.name == PUBLISHED:
            return "Pull request"
        return f"Recorded earlier ({self.recorded})" if self.recorded else "This machine, in this tour"


@dataclass(frozen=True)
class NoResult:
    """No result, and why: one sentence."""

    why: str


def find_result(folder: Path, done: Sequence[Executed]) -> ArmsCompared | NoResult:
    """The result below the tour's `folder`, else the recording whose line notebook 05 printed, else why there is none.

    A recording is named only where the notebook showed it: it never stands in for a run that failed.
    """
    notebook = next((executed for executed in done if executed.name.startswith(NOTEBOOK)), None)
    if notebook is None:
        return NoResult("Notebook 05, which measures it, was not part of this tour.")
    runs = sorted(path.parent for path in folder.glob("*/runs"))
    if runs:
        return _compared(max(runs, key=lambda path: path.stat().st_mtime), None)
    if not notebook.ok:
        return NoResult("Notebook 05 stopped before it had a result.")
    printed = _printed(notebook)
    for recording in folders():
        if line(load_manifest(recording)) in printed.splitlines():
            return _compared(recording, f"profiles/{recording.name}")
    return NoResult("Notebook 05 read results that are neither of this tour nor under profiles/.")


def line(manifest: Manifest) -> str:
    """What notebook 05 prints about the folder that it shows."""
    return f"{manifest.kind} on {manifest.device}, {manifest.date}: {manifest.command}"


def _compared(folder: Path, recorded: str | None) -> ArmsCompared | NoResult:
    if not (folder / MANIFEST).is_file():
        return NoResult("The run of notebook 05 did not finish: it left no manifest.")
    try:
        results = read_results([folder])
        # Of several candidates the first: the page sets one comparison beside the published one.
        first = candidates(results, None, None)[0]
        return ArmsCompared(load_manifest(folder), compare(results, candidate=first), recorded)
    except InputError as error:
        return NoResult(f"The results of notebook 05 cannot be read: {error}.")


def _printed(notebook: Executed) -> str:
    cells = (cell for cell in notebook.notebook.cells if cell.cell_type == "code")
    outputs = (output for cell in cells for output in cell.get("outputs", []))
    return "".join(output.text for output in outputs if output.output_type == "stream")


def beside(folder: Path, done: Sequence[Executed]) -> dict[str, Any]:
    """What templates/throughput.html shows: caption, labels of the metrics, two groups of lines, remarks.

    A group is {"title", "lines"}; a line {"lengths", "concurrency", "cells": [(text, interval or "")], "verdict"}.
    What was not measured has no lines, and its title says why.
    """
    here, published = find_result(folder, done), _published()
    measured = here if isinstance(here, ArmsCompared) else None
    return {
        "caption": f"{_own_caption(here)}. Pull request: {of_manifest(published.manifest, published.manifest.source)}.",
        "labels": [METRICS[name].label for name in SHOWN],
        "groups": [_group(here), _group(published)],
        "made_by": measured.manifest.command if measured else "",
        "notes": measured.manifest.notes if measured else "",
        "remarks": _remarks(measured.table) if measured else [],
    }


def headlines(folder: Path, done: Sequence[Executed]) -> list[str]:
    """Three sentences: what was published, what was measured on two H200, what was measured here and can be told of it."""
    return [_published_sentence(), _h200_sentence(), _here_sentence(find_result(folder, done))]


def _published_sentence() -> str:
    published = _published()
    changes = [row.delta_pct for row in _primary(published.table) if row.delta_pct is not None]
    return (
        f"Published: {min(changes):.1f} to {max(changes):.1f} % more tokens per second on {published.manifest.device} "
        f"at {len(changes)} concurrencies, one run of each arm, so without intervals."
    )


def _h200_sentence() -> str:
    path = profile_path(H200)
    rows = _primary(compare(read_results([path]), candidate="column_parallel"))
    cells = [
        f"{row.delta_pct:+.1f} % (95 %: {row.ci95_pct[0]:+.1f} to {row.ci95_pct[1]:+.1f}) with {row.concurrency} requests in flight"
        for row in rows
        if row.delta_pct is not None and row.ci95_pct
    ]
    return f"Measured on {load_manifest(path).device}, {rows[0].pairs} pairs of runs: {', '.join(cells)}."


def _here_sentence(here: ArmsCompared | NoResult) -> str:
    if isinstance(here, NoResult) or here.recorded:
        return (
            f"Not measured here: {here.why if isinstance(here, NoResult) else 'the table shows a recording.'}"
        )
    row = next(iter(_primary(here.table)), None)
    if row is None or row.delta_pct is None:
        return f"Measured here, on {here.manifest.device}: the two arms could not be compared; the table says why."
    verdict = (row.verdict or "no verdict").replace("_", " ")
    told = f"Measured here, on {here.manifest.device}: {row.delta_pct:+.1f} % from {row.pairs or 1} pair(s) of runs, {verdict}"
    if (row.pairs or 1) > 1:
        return f"{told}."
    return f"{told}: one pair shows that both arms serve, and cannot tell a change from noise."


def _primary(table: Table) -> list[Row]:
    return [row for row in table.rows if row.metric == PRIMARY]


def _published() -> ArmsCompared:
    path = profile_path(PUBLISHED)
    manifest = load_manifest(path)
    arms = {side: manifest.parameters[side] for side in ("baseline", "candidate")}
    return ArmsCompared(
        manifest, compare(read_results([path / "table.csv"]), **arms), f"profiles/{PUBLISHED}"
    )


def _own_caption(here: ArmsCompared | NoResult) -> str:
    if isinstance(here, NoResult):
        return "No result of this machine"
    return f"{here.whose}: {of_manifest(here.manifest)}"


def _remarks(table: Table) -> list[str]:
    refused = [row.reason for row in table.rows if row.reason]
    return list(dict.fromkeys([*refused, *(warning.message for warning in table.warnings)]))


def _group(result: ArmsCompared | NoResult) -> dict[str, Any]:
    if isinstance(result, NoResult):
        return {"title": f"This machine: no result. {result.why}", "lines": []}
    arms = f"{result.table.baseline} against {result.table.candidate or 'nothing'}"
    title = f"{result.whose} ({result.manifest.kind}): {arms}, {result.manifest.device}"
    return {"title": title, "lines": [_line(cell, rows) for cell, rows in _cells(result.table)]}


def _cells(table: Table) -> Iterator[tuple[tuple, dict[str, Row]]]:
    """Rows by cell. Runs of unknown lengths are never pooled: a metric that comes again begins another line."""
    cell: tuple = ()
    metrics: dict[str, Row] = {}
    for row in table.rows:
        here = (row.isl, row.osl, row.concurrency)
        if metrics and (here != cell or row.metric in metrics):
            yield cell, metrics
            metrics = {}
        cell, metrics[row.metric] = here, row
    if metrics:
        yield cell, metrics


def _line(cell: tuple, rows: dict[str, Row]) -> dict[str, Any]:
    isl, osl, concurrency = ("unknown" if part is None else part for part in cell)
    primary = rows.get(PRIMARY)
    return {
        "lengths": f"{isl}/{osl}",
        "concurrency": concurrency,
        "cells": [cell for name in SHOWN for cell in _values(rows.get(name))],
        "verdict": ((primary and primary.verdict) or DASH).replace("_", " "),
    }


def _values(row: Row | None) -> list[tuple[str, str]]:
    """Baseline, candidate, change: (text, interval). Published digits stay; a number that does not exist is a dash."""
    if row is None:
        return [(DASH, "")] * 3
    change = DASH if row.delta_pct is None else f"{row.delta_pct:+.2f} %"
    interval = (
        f"[{row.ci95_pct[0]:+.1f}, {row.ci95_pct[1]:+.1f}]"
        if row.ci95_pct and row.delta_pct is not None
        else ""
    )
    return [(_digits(row, "baseline"), ""), (_digits(row, "candidate"), ""), (change, interval)]


def _digits(row: Row, side: str) -> str:
    value = getattr(row, side)
    if value is None:
        return DASH
    return getattr(row, f"{side}_text") or f"{value:.{3 if value < 100 else 2}f}"


def served_arms(folder: Path) -> dict[str, dict[str, Any]]:
    """{arm: {"results": [paths], "tail", "log", "log_line"}} of the bench folders below `folder`; paths relative.

    `log_line` is the line of the server's log that names the tail.
    """
    arms: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("*/runs/*.json")):
        about = _about_run(path)
        if about is None:
            continue
        arm = arms.setdefault(
            about["arm"], {"results": [], "tail": about.get("tail"), "gemm": about.get("gemm")}
        )
        arm["results"].append(str(path.relative_to(folder)))
        arm.update(_log_line(folder, path.parents[1] / "logs", about["arm"]))
    return arms


def _about_run(path: Path) -> dict[str, Any] | None:
    try:
        return json.loads(path.read_text(encoding="utf-8")).get("latent_moe")
    except (OSError, ValueError, AttributeError):
        return None


def _log_line(folder: Path, logs: Path, arm: str) -> dict[str, Any]:
    """The last start's log and its line about the up-projection's GEMM, which names the tail."""
    for log in sorted(logs.glob(f"*_{arm}_*/server.log"), reverse=True):
        if text := gemm_line(log):
            return {"log": str(log.relative_to(folder)), "log_line": text[:400]}
    return {"log": None, "log_line": None}
