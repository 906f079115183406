"""What the cost tests share."""

import sys
from pathlib import Path

import pytest

from latent_moe.lab.cost import answer, hardware, savings
from latent_moe.lab.recordings import profile_path

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def published():
    """The rows of the published table."""
    return answer.table_rows(profile_path("mi355x_pr51253"))


@pytest.fixture(scope="session")
def mi355x():
    """The machine of the published table."""
    return hardware.get("mi355x")


@pytest.fixture(scope="session")
def modelled(mi355x):
    """Savings of the change on that machine, eight ranks."""
    return savings.modelled(mi355x, 8)
