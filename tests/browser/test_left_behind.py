"""A test that is killed leaves neither a server nor a kernel nor a browser."""

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(200)]

# What a test of JupyterLab does, in a process that can be killed: a server, a kernel, a browser.
KILLED = """
import json, sys, time, urllib.request
from pathlib import Path
sys.path.insert(0, {here!r})
import chromium, lab
settings = Path({settings!r})
with lab.jupyterlab(settings, settings) as address:
    ask = urllib.request.Request(f"{{address}}/api/kernels", b"{{}}", {{"Authorization": f"token {{lab.TOKEN}}"}})
    kernel = json.load(urllib.request.urlopen(ask))
    chrome = chromium.start(settings)
    chrome.get(address)
    print("up", flush=True)
    time.sleep(600)
"""


def _words(process: psutil.Process) -> list[str]:
    """Its command line; none where it has ended, also where nobody has taken note of its end yet."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:  # a zombie is one of these to psutil
        return []


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_outlives_a_killed_test(tmp_path, how):
    pytest.importorskip("jupyterlab")
    pytest.importorskip("selenium")
    import chromium

    if chromium.missing():
        pytest.skip("chromium and chromium-driver are not installed")
    source = KILLED.format(here=str(Path(__file__).parent), settings=str(tmp_path))
    killed = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True)
    assert killed.stdout.readline() == "up\n"
    below = psutil.Process(killed.pid).children(recursive=True)
    said = " ".join(" ".join(_words(process)) for process in below)
    assert all(name in said for name in ("jupyterlab", "ipykernel", "chromedriver", "--type=renderer"))
    killed.send_signal(how)
    killed.wait(60)
    gone, alive = psutil.wait_procs(below, timeout=30)
    assert [words for process in alive if (words := _words(process))] == []
    assert len(gone) + len(alive) > 5
