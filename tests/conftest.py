"""What all tests share."""

import signal
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent


def pytest_configure(config) -> None:
    """Whoever starts the tests with `nohup` or in a script's background hands on ignored signals: their children hear them."""
    for number, action in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, action)


@pytest.fixture(scope="session")
def repository() -> Path:
    """The checkout's top folder."""
    return REPOSITORY


@pytest.fixture(scope="session")
def shared() -> Path:
    """Recordings that are not ours to ship, where they lie beside the checkout."""
    folder = REPOSITORY.parent / "shared"
    if not (folder / "traces").is_dir():
        pytest.skip("the third-party recordings are not beside this checkout")
    return folder


@pytest.fixture
def fixtures() -> Path:
    """Small files that the tests read."""
    return Path(__file__).parent / "fixtures"
