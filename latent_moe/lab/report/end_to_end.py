"""The index's table of throughput: this machine's rows and the pull request's in the same columns."""

import html
from collections.abc import Iterator, Sequence
from pathlib import Path

from latent_moe.lab.plots.theme import of_manifest
from latent_moe.lab.recordings import load_manifest, profile_path
from latent_moe.lab.report.execute import Executed
from latent_moe.lab.report.measured import Absent, Result, find_result
from latent_moe.lab.results import METRICS, PRIMARY, read_results
from latent_moe.lab.results.comparison import Row, Table, compare

PUBLISHED = "mi355x_pr51253"
SHOWN = (PRIMARY, "mean_ttft_ms", "mean_tpot_ms")
_SIDES = ("baseline", "candidate", "change")
_COLUMNS = 2 + len(_SIDES) * len(SHOWN) + 1
_NOTE = (
    "Model, lengths, concurrency and hardware differ between the two groups: compare the changes and their verdicts, not "
    "the rates. Brackets: 95 % intervals. A change without one comes from a single run of each arm, which cannot tell it from noise."
)


def section(folder: Path, done: Sequence[Executed]) -> str:
    """Heading, table and notes as HTML; what was not measured is said in a row of its own, without numbers."""
    mine, published = find_result(folder, done), _published()
    return (
        '<h2 id="end-to-end">End to end: this machine beside the pull request</h2>'
        f'<div class="wide" tabindex="0"><table class="beside"><caption>{_caption(mine, published)}</caption>'
        f"{_head()}{_group(mine)}{_group(published)}</table></div><p>{_NOTE}</p>{_notes(mine)}"
    )


def _published() -> Result:
    path = profile_path(PUBLISHED)
    manifest = load_manifest(path)
    arms = {side: manifest.parameters[side] for side in _SIDES[:2]}
    return Result(manifest, compare(read_results([path / "table.csv"]), **arms), f"profiles/{PUBLISHED}")


def _caption(mine: Result | Absent, published: Result) -> str:
    own = (
        "No result of this machine"
        if isinstance(mine, Absent)
        else f"{_whose(mine)}: {of_manifest(mine.manifest)}"
    )
    other = f"Pull request: {of_manifest(published.manifest, published.manifest.source)}"
    return html.escape(f"{own}. {other}.")


def _whose(mine: Result) -> str:
    return f"Recorded earlier ({mine.recorded})" if mine.recorded else "This machine, in this tour"


def _head() -> str:
    labels = "".join(
        f'<th scope="colgroup" colspan="{len(_SIDES)}">{html.escape(METRICS[name].label)}</th>'
        for name in SHOWN
    )
    sides = "".join(f'<th scope="col">{side}</th>' for _ in SHOWN for side in _SIDES)
    fixed = "".join(f'<th scope="col" rowspan="2">{name}</th>' for name in ("ISL/OSL", "Concurrency"))
    verdict = f'<th scope="col" rowspan="2">Verdict on {html.escape(METRICS[PRIMARY].label)}</th>'
    return f"<thead><tr>{fixed}{labels}{verdict}</tr><tr>{sides}</tr></thead>"


def _group(one: Result | Absent) -> str:
    if isinstance(one, Absent):
        return _rows(f"This machine: no result. {one.why}", [])
    whose = "Pull request" if one.manifest.name == PUBLISHED else _whose(one)
    arms = f"{one.table.baseline} against {one.table.candidate or 'nothing'}"
    return _rows(f"{whose} ({one.manifest.kind}): {arms}, {one.manifest.device}", _cells(one.table))


def _rows(title: str, cells) -> str:
    body = "".join(f"<tr>{''.join(_line(cell, rows))}</tr>" for cell, rows in cells)
    head = f'<tr><th scope="rowgroup" colspan="{_COLUMNS}">{html.escape(title)}</th></tr>'
    return f"<tbody>{head}{body}</tbody>"


def _cells(table: Table) -> Iterator[tuple[tuple, dict[str, Row]]]:
    """Rows by cell. Runs of unknown lengths are never pooled: a metric that comes again begins another line."""
    cell: tuple = ()
    found: dict[str, Row] = {}
    for row in table.rows:
        here = (row.isl, row.osl, row.concurrency)
        if found and (here != cell or row.metric in found):
            yield cell, found
            found = {}
        cell, found[row.metric] = here, row
    if found:
        yield cell, found


def _line(cell: tuple, rows: dict[str, Row]) -> Iterator[str]:
    isl, osl, concurrency = ("unknown" if part is None else part for part in cell)
    yield f'<th scope="row">{isl}/{osl}</th><td>{concurrency}</td>'
    for name in SHOWN:
        row = rows.get(name)
        texts = (_value(row, "baseline"), _value(row, "candidate"), _change(row)) if row else ("–",) * 3
        yield "".join(f"<td>{text}</td>" for text in texts)
    primary = rows.get(PRIMARY)
    yield f"<td>{html.escape(((primary and primary.verdict) or '–').replace('_', ' '))}</td>"


def _value(row: Row, side: str) -> str:
    """The published digits where there are some; a number that does not exist is a dash."""
    value = getattr(row, side)
    if value is None:
        return "–"
    return html.escape(getattr(row, f"{side}_text") or f"{value:.{3 if value < 100 else 2}f}")


def _change(row: Row) -> str:
    if row.delta_pct is None:
        return "–"
    ends = f"<br>[{row.ci95_pct[0]:+.1f}, {row.ci95_pct[1]:+.1f}]" if row.ci95_pct else ""
    return f"{row.delta_pct:+.2f} %{ends}"


def _notes(mine: Result | Absent) -> str:
    if isinstance(mine, Absent):
        return ""
    refused = [row.reason for row in mine.table.rows if row.reason]
    said = dict.fromkeys([*refused, *(warning.message for warning in mine.table.warnings)])
    items = "".join(f"<li>{html.escape(text)}</li>" for text in said)
    made = f"<p>Made by <code>{html.escape(mine.manifest.command)}</code>. {html.escape(mine.manifest.notes)}</p>"
    return made + (f"<ul>{items}</ul>" if items else "")
