"""The HTML report in a real browser: every figure drawn, no fault, no network, fits 1280 px, described, reachable."""

import json

import pytest

from latent_moe.tour import run_tour

pytestmark = [pytest.mark.browser, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("a report")
    tour = run_tour(folder, only=["01"], notify=lambda _: None)
    assert tour.ok, tour.summary
    return folder


@pytest.mark.parametrize("page", ["index.html", "01_latent_moe.html"])
def test_page(report, browser, page):
    browser.get((report / page).as_uri())
    ask = browser.execute_script
    figures = ask("return document.querySelectorAll('.figure').length")
    assert figures > 0
    assert ask("return document.querySelectorAll('.figure .main-svg:first-of-type').length") >= figures
    drawn = ask(
        "return [...document.querySelectorAll('.figure')].every(f => f.querySelector('.plot-container'))"
    )
    assert drawn
    assert ask("return document.documentElement.scrollWidth <= window.innerWidth")
    labels = ask("return [...document.querySelectorAll('.figure')].map(f => f.getAttribute('aria-label'))")
    assert all(len(label) > 20 for label in labels)
    assert ask("return [...document.querySelectorAll('.figure, pre, .wide')].every(e => e.tabIndex === 0)")
    assert [line for line in browser.get_log("browser") if line["level"] == "SEVERE"] == []
    assert _fetched(browser) == []


def _fetched(browser):
    events = [json.loads(line["message"])["message"] for line in browser.get_log("performance")]
    sent = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
    return [url for url in sent if not url.startswith(("file:", "data:", "blob:"))]
