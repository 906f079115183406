"""The end-to-end result that a tour shows: the run that notebook 05 made in it, or the recorded one that it read."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from latent_moe.errors import InputError
from latent_moe.lab.recordings import MANIFEST, Manifest, folders, load_manifest
from latent_moe.lab.report.execute import Executed
from latent_moe.lab.results import read_results
from latent_moe.lab.results.comparison import Table, candidates, compare

THROUGHPUT = "05_"


@dataclass(frozen=True)
class Result:
    """A table of two arms and where it comes from. `recorded` is None for a run of this tour, else profiles/NAME."""

    manifest: Manifest
    table: Table
    recorded: str | None = None


@dataclass(frozen=True)
class Absent:
    """No result, and why: one sentence."""

    why: str


def find_result(folder: Path, done: Sequence[Executed]) -> Result | Absent:
    """The result below the tour's `folder`, else the recording whose line notebook 05 printed, else why there is none.

    A recording is named only where the notebook showed it: it never stands in for a run that failed.
    """
    notebook = next((one for one in done if one.name.startswith(THROUGHPUT)), None)
    if notebook is None:
        return Absent("Notebook 05, which measures it, was not part of this tour.")
    mine = sorted(path.parent for path in folder.glob("*/runs"))
    if mine:
        return _result(max(mine, key=lambda path: path.stat().st_mtime), None)
    if not notebook.ok:
        return Absent("Notebook 05 stopped before it had a result.")
    printed = _printed(notebook)
    for recording in folders():
        if line(load_manifest(recording)) in printed.splitlines():
            return _result(recording, f"profiles/{recording.name}")
    return Absent("Notebook 05 read results that are neither of this tour nor under profiles/.")


def line(manifest: Manifest) -> str:
    """What notebook 05 prints about the folder that it shows."""
    return f"{manifest.kind} on {manifest.device}, {manifest.date}: {manifest.command}"


def _result(folder: Path, recorded: str | None) -> Result | Absent:
    if not (folder / MANIFEST).is_file():
        return Absent("The run of notebook 05 did not finish: it left no manifest.")
    try:
        results = read_results([folder])
        # Of several candidates the first: the page sets one comparison beside the published one.
        first = candidates(results, None, None)[0]
        return Result(load_manifest(folder), compare(results, candidate=first), recorded)
    except InputError as error:
        return Absent(f"The results of notebook 05 cannot be read: {error}.")


def _printed(notebook: Executed) -> str:
    cells = (cell for cell in notebook.notebook.cells if cell.cell_type == "code")
    outputs = (output for cell in cells for output in cell.get("outputs", []))
    return "".join(output.text for output in outputs if output.output_type == "stream")
