"""The report's folder: complete on its own, links that lead somewhere, every kind of tagged output, summary.json."""

import json
import re
from urllib.parse import unquote

import pytest
from bs4 import BeautifulSoup

PAGES = ("index.html", "01_fine.html", "02_breaks.html")


@pytest.fixture(scope="module")
def soups(tour):
    pages = sorted(tour.folder.glob("*.html"))
    return {page.name: BeautifulSoup(page.read_text(encoding="utf-8"), "html.parser") for page in pages}


def test_a_failed_notebook_fails_the_tour_and_keeps_its_page(tour, soups):
    assert not tour.ok
    assert "ValueError: broken & <i>on purpose</i>" in soups["02_breaks.html"].find(class_="fault").text
    assert "ValueError: broken & <i>on purpose</i>" in soups["index.html"].find(class_="bad").text
    assert soups["02_breaks.html"].find("i", string="on purpose") is None
    assert "before the fault" in soups["index.html"].text


def test_every_link_is_relative_and_leads_somewhere(tour, soups):
    for name, soup in soups.items():
        places = [tag.get("href") or tag.get("src") for tag in soup.find_all(["a", "link", "script", "img"])]
        for place in filter(None, places):
            if place.startswith(("data:", "#")):
                continue
            assert not re.match(r"[a-z]+:|/", place), (name, place)
            assert (tour.folder / unquote(place)).is_file(), (name, place)


def test_each_page_links_to_all_and_marks_itself(tour, soups):
    for name, soup in soups.items():
        links = [unquote(link["href"]) for link in soup.nav.find_all("a")]
        assert sorted(links) == sorted(soups)
        [current] = soup.nav.find_all("a", attrs={"aria-current": "page"})
        assert unquote(current["href"]) == name


def test_plotly_lies_there_once_and_the_folder_is_small(tour):
    files = [path for path in tour.folder.rglob("*") if path.is_file()]
    marked = [path for path in files if b"plotly.js v" in path.read_bytes()[:4000]]
    assert [path.relative_to(tour.folder).as_posix() for path in marked] == ["assets/plotly.min.js"]
    assert sum(path.stat().st_size for path in files) < 30e6


def test_the_index_takes_every_kind_of_tagged_output(soups):
    index = soups["index.html"]
    assert "A line" in index.find("figure")["aria-label"]
    assert index.find("strong", string="27.4").find_parent("table") is not None
    assert "said on stdout" in index.text
    assert "untagged" not in index.text
    assert "Markdown(" not in index.text


def test_a_figures_data_stay_data(soups):
    script = soups["01_fine.html"].find("figure").script
    assert json.loads(script.string)["data"][0]["name"] == "</script> & one"


@pytest.mark.parametrize("page", PAGES)
def test_tables_scroll_inside_themselves_and_have_named_heads(soups, page):
    for table in soups[page].find_all("table"):
        assert table.find_parent(class_="wide")["tabindex"] == "0"
        assert all(cell.get("scope") for cell in table.find_all("th"))
    assert all(block.get("tabindex") == "0" for block in soups[page].find_all("pre"))


def test_summary_json(tour):
    summary = json.loads((tour.folder / "summary.json").read_text(encoding="utf-8"))
    assert summary == json.loads(json.dumps(tour.summary, default=str))
    assert [(one["name"][:2], one["ok"]) for one in summary["notebooks"]] == [
        ("01", True),
        ("02", False),
        ("03", True),
    ]
    assert all(one["seconds"] > 0 for one in summary["notebooks"])
    assert summary["notebooks"][1]["error"].startswith("ValueError")
    assert summary["notebooks"][0]["error"] is None
    assert summary["index"] == str(tour.folder / "index.html")
    assert summary["seconds"] >= sum(one["seconds"] for one in summary["notebooks"]) - 0.5
    assert summary["peak_memory_bytes"] > 10e6
    assert summary["arms"] == {}
    assert {"kind", "device_name", "torch_version", "vllm_version"} <= summary["platform"].keys()
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]", summary["date"])


def test_a_figure_that_a_slider_repeats_is_shown_once(soups):
    page = soups["01_fine.html"]
    assert len(page.find_all("figure")) == 2
    assert len(page.find_all(class_="slider-note")) == 1
