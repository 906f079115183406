"""Launches of one shape that run at once, and a launch that was cut off: nobody's sums change."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from latent_moe.fused_kernel import shelf, why_not

PROGRAM = Path(__file__).with_name("at_once.py")


@pytest.fixture(scope="module")
def answer():
    if why_not(16, 16) == "Triton is not installed":
        pytest.skip("Triton is not installed")
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(PROGRAM.parents[2])}
    done = subprocess.run(
        [sys.executable, PROGRAM], env=environment, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.mark.parametrize("form", ["swapped", "early"])
def test_a_launch_inside_another_leaves_both_right(answer, form):
    for errors in answer[form]["nested"]:
        assert all(0 < error <= 1e-2 for error in errors), answer[form]["nested"]


@pytest.mark.parametrize("form", ["swapped", "early"])
def test_a_launch_that_was_cut_off_leaves_the_next_one_right(answer, form):
    assert all(0 < error <= 1e-2 for error in answer[form]["cut"]), answer[form]["cut"]


@pytest.fixture
def empty(monkeypatch):
    monkeypatch.setattr(shelf, "_idle", {})


@pytest.mark.usefixtures("empty")
def test_what_was_taken_is_nobody_elses_until_it_is_put_back():
    key = ((7, 0), "shape")
    first, second = shelf.take(key, object), shelf.take(key, object)
    assert first is not second
    shelf.put_back(key, first)
    assert shelf.take(key, object) is first


@pytest.mark.usefixtures("empty")
def test_streams_and_captures_share_nothing():
    kept = {}
    for place in ((7, 0), (8, 0), (7, 1), (8, 1)):
        kept[place] = shelf.take((place, "shape"), object)
        shelf.put_back((place, "shape"), kept[place])
    assert len({id(one) for one in kept.values()}) == 4
    assert shelf.take(((8, 1), "shape"), object) is kept[8, 1]


@pytest.mark.usefixtures("empty")
def test_a_new_capture_forgets_the_last_ones_memory_and_keeps_the_streams():
    for place in ((7, 0), (7, 1)):
        shelf.put_back((place, "shape"), place)
    assert shelf.take(((7, 2), "shape"), lambda: "new") == "new"
    assert shelf.take(((7, 1), "shape"), lambda: "new") == "new"
    assert shelf.take(((7, 0), "shape"), lambda: "new") == (7, 0)


def test_a_graph_takes_over_its_streams_memory_and_no_other_place_gets_it():
    kept, made = {}, iter("abcd")
    claim = shelf.claim
    assert claim(kept, (7, 0), ("use",), lambda: next(made)) == "a"
    assert claim(kept, (7, 0), ("use",), lambda: next(made)) == "a"
    assert claim(kept, (8, 0), ("use",), lambda: next(made)) == "b"
    assert claim(kept, (7, 1), ("use",), lambda: next(made)) == "a"
    assert claim(kept, (7, 1), ("use",), lambda: next(made)) == "a"
    # The next graph on that stream finds nothing until the stream has run again.
    assert claim(kept, (7, 2), ("use",), lambda: next(made)) is None
    assert claim(kept, (7, 0), ("use",), lambda: next(made)) == "c"
    assert claim(kept, (7, 3), ("use",), lambda: next(made)) == "c"
