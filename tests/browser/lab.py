"""A real JupyterLab on a free loopback port, and what a test asks of the page that it serves."""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError

TOKEN = "latent-moe-test"
KEEPER = str(Path(__file__).with_name("keeper.py"))
RUN_ALL = """
const done = arguments[arguments.length - 1];
window.jupyterapp.commands.execute('notebook:run-all-cells').then(() => done('ran'), e => done(String(e)));
"""
# The model of the notebook, not its page: cells outside the window are not drawn.
CELLS = """
const panel = window.jupyterapp && window.jupyterapp.shell.currentWidget;
if (!panel || !panel.content || !panel.content.model || !panel.sessionContext) return null;
const session = panel.sessionContext.session;
const cells = [...panel.content.model.sharedModel.cells].filter(c => c.cell_type === 'code');
return {status: session && session.kernel ? session.kernel.status : 'none',
        cells: cells.map(c => ({count: c.execution_count, outputs: c.toJSON().outputs}))};
"""


@contextmanager
def jupyterlab(root, settings):
    """JupyterLab serving `root`; yields its address. It ends, with its kernels, when the block or this process ends."""
    port = free_port()
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1"]
    command += [f"--port={port}", "--ServerApp.port_retries=0", f"--ServerApp.root_dir={root}"]
    command += [f"--IdentityProvider.token={TOKEN}", "--LabApp.expose_app_in_browser=True"]
    with kept(command, settings, root) as log:
        _wait_until_it_answers(f"http://127.0.0.1:{port}", log)
        yield f"http://127.0.0.1:{port}"


@contextmanager
def kept(command, settings, folder):
    """Run a JupyterLab command below a keeper, in `folder`, with its files in `settings`; yields its log's path."""
    quiet = ["--LabApp.news_url=None", "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"]
    # traitlets takes one value: `make lab` gives these two itself.
    quiet = [flag for flag in quiet if flag not in command]
    folders = {f"JUPYTER_{name}_DIR": str(settings / name) for name in ("CONFIG", "RUNTIME", "DATA")}
    folders |= {"JUPYTERLAB_WORKSPACES_DIR": str(settings / "ws"), "IPYTHONDIR": str(settings / "ipython")}
    folders |= {"JUPYTERLAB_SETTINGS_DIR": str(settings / "lab"), "HOME": str(settings)}
    path = settings / "jupyterlab.log"
    with path.open("w") as log:
        keeper = subprocess.Popen(
            [sys.executable, KEEPER, *command, *quiet],
            env=os.environ | folders,
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
        )
        try:
            yield path
        finally:
            keeper.stdin.close()
            keeper.wait(30)


def open_notebook(browser, address, path):
    """Open a notebook and wait until its kernel is idle."""
    browser.get(f"{address}/lab/tree/{path}?token={TOKEN}&reset")
    wait_for_kernel(browser)


def wait_for_kernel(browser):
    """Wait until the open notebook's kernel is idle."""
    wait_for(
        lambda: (state(browser) or {}).get("status") == "idle",
        60,
        lambda: f"an idle kernel: {state(browser)}",
    )


def run_all(browser):
    """Run every cell through JupyterLab's own command; returns the code cells with their outputs."""
    browser.set_script_timeout(400)
    assert browser.execute_async_script(RUN_ALL) == "ran"
    wait_for(lambda: _finished(state(browser)), 400, "the last cell")
    return state(browser)["cells"]


def state(browser):
    """Kernel status and code cells of the open notebook, None before it is open."""
    return browser.execute_script(CELLS)


def wait_for(condition, seconds, what):
    """Ask until it holds; fails naming `what` (a text, or a function that gives one) after `seconds`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.5)
    raise AssertionError(f"waited {seconds} s for {what() if callable(what) else what}")


def _finished(seen):
    return seen["status"] == "idle" and seen["cells"][-1]["count"] is not None


def _wait_until_it_answers(address, log):
    def answers():
        assert "stopping" not in log.read_text(), log.read_text()[-2000:]
        try:
            return urllib.request.urlopen(f"{address}/api", timeout=5).status == 200
        except (URLError, OSError):
            return False

    wait_for(answers, 60, f"JupyterLab ({log})")


def free_port():
    """A port of 127.0.0.1 that nothing listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]
