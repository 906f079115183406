"""Every page of the report in a real browser and in both themes: drawn, quiet, offline, wide enough, readable."""

import sys
from itertools import pairwise
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

pytest.importorskip("selenium")
import pages

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(600)]

REPOSITORY = Path(__file__).parents[2]
NAMES = ["index", *sorted(path.stem for path in (REPOSITORY / "notebooks").glob("[0-9][0-9]_*.ipynb"))]


@pytest.fixture(
    params=[(name, theme) for name in NAMES for theme in pages.THEMES], ids="_".join, scope="module"
)
def page(request, report, browser):
    """The browser with one page open in one theme; leaves a picture of it in artifacts/report/."""
    name, theme = request.param
    pages.show(browser, (report / f"{name}.html").as_uri(), theme)
    pages.photograph(browser, REPOSITORY / "artifacts" / "report" / f"{name}_{theme}.png")
    return browser


def test_every_figure_is_drawn(page):
    figures = pages.drawn(page)
    assert figures
    assert [one for one in figures if not (one["marks"] and one["width"] > 300)] == []


def test_no_error_and_no_network(page):
    assert [line for line in page.get_log("browser") if line["level"] in ("SEVERE", "WARNING")] == []
    assert pages.fetched(page) == []


def test_fits_1280_px(page):
    assert page.execute_script("return window.innerWidth") == 1280
    assert page.execute_script("return document.documentElement.scrollWidth") <= 1280
    # The table that people come for is seen whole, not scrolled inside itself.
    assert page.execute_script(
        "return [...document.querySelectorAll('.beside')].every(t => "
        "t.parentElement.scrollWidth <= t.parentElement.clientWidth)"
    )


def test_contrast_is_aa(page):
    found = page.execute_script(pages.CONTRAST)
    assert found["seen"] > 50
    assert found["faults"] == []


def test_pictures_have_words_and_headings_are_in_order(page):
    assert page.execute_script("return document.documentElement.lang") == "en"
    assert page.execute_script(pages.NAMELESS) == []
    levels = [level for level, _ in page.execute_script(pages.HEADINGS)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))


def test_axe_finds_nothing(page, axe):
    if axe is None:
        pytest.skip("axe-core is not at hand: npm or its registry is missing")
    assert pages.complaints(page, axe) == []


def test_tab_reaches_everything_with_a_visible_focus(page):
    assert page.execute_script(pages.MOUSE_ONLY) == []
    reached, stops = pages.tab_through(page)
    assert [text for i, text in enumerate(stops) if i not in reached] == []
    assert [stops[i] for i, line in reached.items() if line < 1] == []
