"""What the tests ask of a page of the report in Chromium."""

import base64
import json
import time
from pathlib import Path

from selenium.webdriver import ActionChains
from selenium.webdriver.common.keys import Keys

THEMES = ("light", "dark")
CONTRAST = Path(__file__).with_name("contrast.js").read_text(encoding="utf-8")
DRAWN = """
return [...document.querySelectorAll('.figure')].map(f => {
  const box = f.querySelector('.main-svg')?.getBoundingClientRect();
  const marks = f.querySelectorAll('.main-svg .trace, .main-svg .bars .point, .main-svg image, .main-svg .table').length;
  return {label: f.getAttribute('aria-label'), width: box ? box.width : 0, marks};
});
"""
AXE_RUN = """
const done = arguments[arguments.length - 1];
axe.run(document, {resultTypes: ['violations']}).then(
  found => done(found.violations.map(v => [v.id, v.help, v.nodes.map(n => n.html.slice(0, 160)).slice(0, 4)])),
  error => done([['axe', String(error), []]]));
"""
HEADINGS = (
    "return [...document.querySelectorAll('h1,h2,h3,h4,h5,h6')].map(h => [Number(h.tagName[1]), h.innerText])"
)
NAMELESS = """
const said = e => e.getAttribute('aria-label') || e.getAttribute('alt') || '';
return [...document.querySelectorAll('figure, img, [role=img]')].filter(e => said(e).length < 20).map(e => e.outerHTML.slice(0, 200));
"""

# Marks and counts what a keyboard must reach: whatever acts or scrolls, and figures.
STOPS = """
const all = [...document.querySelectorAll('a[href], button, input, select, textarea, summary, [tabindex]')];
const shown = all.filter(e => e.tabIndex >= 0 && e.checkVisibility({visibilityProperty: true}));
document.activeElement.blur();
window.getSelection().removeAllRanges();
window.scrollTo(0, 0);
shown.forEach((e, i) => e.dataset.stop = i);
return shown.map(e => e.outerHTML.slice(0, 120));
"""
MOUSE_ONLY = """
return [...document.querySelectorAll('a:not([href]), [onclick], [role=button], input, select, button')]
  .filter(e => e.tabIndex < 0 || e.tagName === 'A').map(e => e.outerHTML.slice(0, 120));
"""
FOCUSED = """
const at = document.activeElement, style = getComputedStyle(at);
return {stop: at.dataset.stop, line: style.outlineStyle === 'none' ? 0 : parseFloat(style.outlineWidth)};
"""


def tab_through(browser):
    """({stop: width of its focus outline, px} of what Tab reached, descriptions of all stops)."""
    stops = browser.execute_script(STOPS)
    reached = {}
    for _ in range(len(stops) + 5):
        ActionChains(browser, duration=0).send_keys(Keys.TAB).perform()
        at = browser.execute_script(FOCUSED)
        if at["stop"] is not None:
            reached[int(at["stop"])] = at["line"]
    return reached, stops


def show(browser, address, theme):
    """Open a page in one theme, forget what the logs held before, and wait until its figures stand."""
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": theme}]}
    )
    browser.get("about:blank")
    for log in ("browser", "performance"):
        browser.get_log(log)
    browser.get(address)
    end = time.monotonic() + 20
    while time.monotonic() < end and not all(one["marks"] for one in drawn(browser)):
        time.sleep(0.1)


def drawn(browser):
    """[{label, width, marks}] of each figure: px of its drawing, and how many traces stand in it."""
    return browser.execute_script(DRAWN)


def fetched(browser):
    """Addresses that the page asked the network for."""
    events = [json.loads(line["message"])["message"] for line in browser.get_log("performance")]
    sent = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
    return [url for url in sent if not url.startswith(("file:", "data:", "blob:", "about:"))]


def complaints(browser, script):
    """What axe-core finds: [rule, its words, elements]."""
    browser.execute_script(script)
    browser.set_script_timeout(60)
    return browser.execute_async_script(AXE_RUN)


def photograph(browser, path):
    """The whole page as a picture, however long it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    taken = browser.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True})
    path.write_bytes(base64.b64decode(taken["data"]))
