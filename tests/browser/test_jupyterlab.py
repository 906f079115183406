"""Notebook 02 in a real JupyterLab and a real browser: every cell runs, and its slider redraws the figure."""

import sys
from pathlib import Path

import nbformat
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from lab import jupyterlab, open_notebook, run_all, wait_for

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(900)]

REPOSITORY = Path(__file__).parents[2]
NAME = "02_sharded_up_projection.ipynb"
SLIDER = "const s = [...document.querySelectorAll('.widget-slider')].find(e => e.innerText.includes('step'));"
SHOW = """
const panel = window.jupyterapp.shell.currentWidget;
const at = panel.content.widgets.findIndex(c => c.model.sharedModel.getSource().includes('figures.step_map, steps='));
panel.content.activeCellIndex = at;
panel.content.scrollToItem(at, 'start');
"""
FIGURE = (
    SLIDER
    + """
const cell = s && s.closest('.jp-Cell');
const title = cell && cell.querySelector('.js-plotly-plot .gtitle');
return title && title.textContent;
"""
)


@pytest.fixture
def lab(tmp_path):
    pytest.importorskip("jupyterlab")
    root, settings = tmp_path / "root", tmp_path / "settings"
    (root / "notebooks").mkdir(parents=True)
    settings.mkdir()
    notebook = nbformat.read(REPOSITORY / "notebooks" / NAME, as_version=4)
    [parameters] = [c for c in notebook.cells if "parameters" in c.metadata.get("tags", [])]
    # vLLM takes one to two minutes to start, and has tests of its own.
    parameters.source = "ask_vllm = False"
    nbformat.write(notebook, root / "notebooks" / NAME)
    with jupyterlab(root, settings) as address:
        yield address


def test_notebook_02_runs_and_its_slider_redraws(lab, browser):
    from selenium.webdriver.common.keys import Keys

    artifacts = REPOSITORY / "artifacts"
    artifacts.mkdir(exist_ok=True)
    try:
        open_notebook(browser, lab, f"notebooks/{NAME}")
        cells = run_all(browser)
        assert [o for cell in cells for o in cell["outputs"] if o["output_type"] == "error"] == []
        assert all(cell["count"] is not None for cell in cells)
        browser.execute_script(SHOW)
        before = wait_for(lambda: browser.execute_script(FIGURE), 60, "the slider's figure")
        assert before.startswith("Step 4:")
        handle = browser.execute_script(SLIDER + "return s.querySelector('.noUi-handle')")
        handle.send_keys(Keys.ARROW_LEFT)
        after = wait_for(lambda: _changed(browser, before), 60, "another figure")
        assert after.startswith("Step 3:")
        assert browser.find_elements("css selector", "[data-mime-type='application/vnd.jupyter.error']") == []
    finally:
        browser.save_screenshot(str(artifacts / "jupyterlab_02.png"))


def _changed(browser, before):
    title = browser.execute_script(FIGURE)
    return title if title != before else None
