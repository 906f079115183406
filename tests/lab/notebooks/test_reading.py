"""Notebook 04 opens whatever there is, and says what stands in for what is not."""

import pytest

from latent_moe.errors import InputError
from latent_moe.lab.notebooks.own_recording import open_recording
from latent_moe.lab.recordings import profile_path


def test_without_a_recording_the_synthetic_one_is_whole():
    found = open_recording()
    assert found.about.kind == found.arms_about.kind == "synthetic"
    assert len(found.says) == 1
    assert found.database == profile_path("synthetic_k3_tail") / "replicated" / "results.db"


def test_a_torch_trace_says_what_stands_in_for_its_database():
    found = open_recording(profile_path("h200x2_tails") / "trace_fused.json.gz")
    assert found.about.name == "h200x2_tails"
    assert found.about.kind == "measured"
    assert found.arms_about.kind == "synthetic"
    head, sql, arms = found.says
    assert "PyTorch profiler JSON" in head
    assert "no rocpd database" in sql
    assert "synthetic_k3_tail (synthetic" in sql
    assert "replicated and column_parallel" in arms


def test_a_file_of_a_synthetic_recording_stays_synthetic():
    found = open_recording(profile_path("synthetic_k3_tail") / "column_parallel" / "results.db")
    assert found.about.kind == "synthetic"
    assert found.database.parent.name == "column_parallel"


def test_a_trace_without_a_manifest_is_not_given_a_device(tmp_path):
    source = profile_path("synthetic_k3_tail") / "replicated" / "kernel_trace.csv"
    copy = tmp_path / "a" / "b" / "mine.csv"
    copy.parent.mkdir(parents=True)
    copy.write_bytes(source.read_bytes())
    found = open_recording(copy)
    assert found.about.device == "device not stated"
    assert "mine.csv" in found.says[0]


def test_nothing_there_is_an_input_error(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        open_recording(tmp_path / "absent.db")
