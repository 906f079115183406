"""A headless Chromium whose driver runs below a keeper: it ends when this process does, whatever ends that."""

import shlex
import shutil
import sys
from pathlib import Path

from selenium import webdriver

KEEPER = Path(__file__).with_name("keeper.py")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--window-size=1280,900",
)


def missing():
    """Whether Chromium or its driver is not installed."""
    return not (shutil.which("chromium") and shutil.which("chromedriver"))


def start(folder):
    """A Chromium of 1280 px; a small script is written into `folder`."""
    kept = folder / "chromedriver"
    # Selenium holds the driver's standard input open: that is what the keeper waits on.
    words = shlex.join([sys.executable, str(KEEPER), shutil.which("chromedriver")])
    kept.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    kept.chmod(0o755)
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for flag in FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(str(kept)))
