"""The index's table of throughput: this tour's run, the recording that notebook 05 showed, or a reason and no numbers."""

import json
import shutil

import nbformat
import pandas as pd
import pytest
from bs4 import BeautifulSoup

from latent_moe.lab.notebooks.bench_here import RECORDED
from latent_moe.lab.recordings import load_manifest, profile_path
from latent_moe.lab.report.pages import section
from latent_moe.lab.report.throughput import line
from latent_moe.lab.results import PRIMARY, read_results, render
from latent_moe.lab.results.comparison import compare

THROUGHPUT = "05_end_to_end_throughput"


@pytest.fixture
def bench(tmp_path):
    """A tour's folder in which notebook 05 left a run: the recorded pairs."""
    shutil.copytree(profile_path("cpu_demo"), tmp_path / "bench_05")
    return tmp_path


def _soup(text):
    return BeautifulSoup(text, "html.parser")


def _groups(soup):
    """[(title, rows of cell texts)] of the table's bodies."""
    bodies = [[row.find_all(["th", "td"]) for row in body.find_all("tr")] for body in soup.find_all("tbody")]
    return [(head[0].text, [[cell.text for cell in row] for row in rows]) for head, *rows in bodies]


def _texts(folder):
    """Baseline, candidate and change of the three metrics, from the frame that the plots use."""
    rows = render.frame(compare(read_results([folder]))).set_index("metric")
    for name in ("total_tok_per_s", "mean_ttft_ms", "mean_tpot_ms"):
        row = rows.loc[name]
        yield from (f"{row.baseline:.2f}", f"{row.candidate:.2f}")
        yield f"{row.delta_pct:+.2f} %[{row.ci95_low_pct:+.1f}, {row.ci95_high_pct:+.1f}]"


def test_this_tours_run_stands_beside_the_published_table(bench, executed):
    soup = _soup(section(bench, [executed(THROUGHPUT)]))
    mine, published = _groups(soup)
    assert mine[0].startswith(
        "This machine, in this tour (measured): replicated against column_parallel, AMD EPYC"
    )
    (verdict,) = {
        row.verdict for row in compare(read_results([profile_path("cpu_demo")])).rows if row.metric == PRIMARY
    }
    assert mine[1] == [["128/16", "4", *_texts(profile_path("cpu_demo")), verdict]]
    assert published[0].startswith("Pull request (published): main against PR, 8x AMD Instinct MI355X")
    manifest = load_manifest(bench / "bench_05")
    assert f"measured, {manifest.device}, {manifest.date}" in soup.caption.text
    assert "published, 8x AMD Instinct MI355X, 2026-08-06; vllm-project/vllm#51253" in soup.caption.text


def test_published_digits_are_those_of_the_table(tmp_path, executed):
    printed = pd.read_csv(profile_path("mi355x_pr51253") / "table.csv", dtype=str)
    _, published = _groups(_soup(section(tmp_path, [])))
    for column, config in ((2, "main"), (3, "PR")):
        wanted = printed[printed.config == config].total_tok_per_s.tolist()
        assert [row[column] for row in published[1]] == wanted
    assert [row[4] for row in published[1]] == ["+4.91 %", "+3.99 %", "+3.47 %", "+3.05 %", "+3.32 %"]


def test_heads_and_rows_have_the_same_width(bench, executed):
    soup = _soup(section(bench, [executed(THROUGHPUT)]))
    widths = [
        sum(int(cell.get("colspan", 1)) for cell in row.find_all("th")) for row in soup.thead.find_all("tr")
    ]
    assert widths == [12, 9]
    assert all(len(row) == 12 for _, rows in _groups(soup) for row in rows)


def test_the_recording_that_notebook_05_showed_is_named(tmp_path, executed):
    printed = line(load_manifest(profile_path(RECORDED))) + "\n"
    soup = _soup(section(tmp_path, [executed(THROUGHPUT, printed)]))
    (title, rows), _ = _groups(soup)
    assert title.startswith(f"Recorded earlier (profiles/{RECORDED}) (measured)")
    assert rows
    assert "This machine" not in soup.caption.text


@pytest.mark.parametrize(
    ("printed", "error", "why"),
    [
        ("", "LatentMoEError: the server died", "stopped before it had a result"),
        (
            "measured on a box, 2026-01-01: latent-moe bench mine\n",
            None,
            "neither of this tour nor under profiles/",
        ),
    ],
)
def test_no_result_is_said_without_numbers(tmp_path, executed, printed, error, why):
    (title, rows), (_, published) = _groups(_soup(section(tmp_path, [executed(THROUGHPUT, printed, error)])))
    assert title.startswith("This machine: no result.")
    assert why in title
    assert rows == []
    assert len(published) == 5


def test_without_notebook_05(tmp_path, executed):
    (title, rows), _ = _groups(_soup(section(tmp_path, [executed("01_latent_moe")])))
    assert "was not part of this tour" in title
    assert rows == []


def test_a_run_without_a_manifest_did_not_finish(bench, executed):
    (bench / "bench_05" / "manifest.json").unlink()
    (title, rows), _ = _groups(_soup(section(bench, [executed(THROUGHPUT, error="the kernel died")])))
    assert "did not finish" in title
    assert rows == []


def test_a_run_whose_requests_failed_is_not_compared(bench, executed):
    for path in (bench / "bench_05" / "runs").glob("column_parallel_*.json"):
        raw = json.loads(path.read_text())
        path.write_text(json.dumps(raw | {"completed": raw["completed"] - 1, "failed": 1}))
    soup = _soup(section(bench, [executed(THROUGHPUT)]))
    (_, rows), _ = _groups(soup)
    assert rows[0][-1] == "not comparable"
    assert rows[0][4] == "–"
    assert len(soup.find_all("li")) > 0


def test_the_line_is_what_notebook_05_prints(repository, capsys):
    """The notebook's own cell, run over a recording, prints what the report looks for."""
    notebook = nbformat.read(repository / "notebooks" / f"{THROUGHPUT}.ipynb", as_version=4)
    sources = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    [source] = [text for text in sources if "load_manifest(folder)" in text]
    exec(source, {"folder": profile_path(RECORDED), "load_manifest": load_manifest})
    assert line(load_manifest(profile_path(RECORDED))) in capsys.readouterr().out
