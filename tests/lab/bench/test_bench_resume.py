"""--resume completes exactly what is missing, and refuses what cannot be completed."""

import json
import os
import signal
import subprocess
import time

from bench_driver import bench, environment, one_line, result_files, words, write_recipe
from processes import survivors, wait_gone

from latent_moe.lab.recordings import load_manifest

PARITY = "[parity]\ncount = 2\nlength = 4\nmax_tokens = 3"


def interrupted(recipe, out, mark, files: int) -> None:
    """A bench that gets Ctrl-C once `files` runs are saved."""
    process = subprocess.Popen(
        words(recipe, out), env=environment(mark), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 90
    while len(list(out.glob("runs/*.json"))) < files and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    try:
        assert process.wait(60) == 130
    except subprocess.TimeoutExpired:
        process.kill()
        raise AssertionError(f"still there: {survivors(mark)}") from None
    assert wait_gone(mark, 5) == []
    assert list(out.rglob("*.part")) == []


def sessions(out) -> set[str]:
    return {json.loads(text)["latent_moe"]["boot"] for text in result_files(out).values()}


def test_what_is_whole_stays_and_the_rest_is_measured(tmp_path):
    recipe, out, mark = (
        write_recipe(tmp_path, pairs=3, more=PARITY),
        tmp_path / "out",
        f"resume-{os.getpid()}",
    )
    interrupted(recipe, out, mark, files=5)  # pair 1 whole, of pair 2 one run or a few more
    first = {name: text for name, text in result_files(out).items() if "pair1" in name}
    half = {name for name in result_files(out) if "pair1" not in name}
    assert len(first) == 4
    assert 1 <= len(half) < 4
    done = bench(recipe, out, "--resume", mark=mark)
    assert done.returncode == 0, done.stderr
    after = result_files(out)
    assert len(after) == 3 * 2 * 2
    assert {name: after[name] for name in first} == first
    assert {path.name.split(".")[0] + ".json" for path in (out / "incomplete").glob("*")} == half
    assert len(sessions(out)) == 6
    assert {path.stem for path in (out / "parity").glob("*.json")} == {"one", "two"}
    assert len(list((out / "logs").glob("*"))) == 2 + len({name.split("_")[0] for name in half}) + 4


def test_a_finished_folder_has_nothing_left_to_do(tmp_path):
    recipe, out, mark = write_recipe(tmp_path), tmp_path / "out", f"again-{os.getpid()}"
    assert bench(recipe, out, mark=mark).returncode == 0
    before, logs = result_files(out), len(list((out / "logs").glob("*")))
    done = bench(recipe, out, "--resume", mark=mark)
    assert done.returncode == 0
    assert "is measured already" in done.stderr
    assert result_files(out) == before
    assert len(list((out / "logs").glob("*"))) == logs


def test_answers_that_are_missing_are_asked_for_without_measuring_again(tmp_path):
    recipe, out, mark = write_recipe(tmp_path, more=PARITY), tmp_path / "out", f"answers-{os.getpid()}"
    assert bench(recipe, out, mark=mark).returncode == 0
    before = result_files(out)
    (out / "parity" / "two.json").unlink()
    kept = (out / "parity" / "one.json").read_bytes()
    assert bench(recipe, out, "--resume", mark=mark).returncode == 0
    assert result_files(out) == before
    assert (out / "parity" / "one.json").read_bytes() == kept
    assert (out / "parity" / "two.json").is_file()
    assert {"vllm (one)", "vllm (two)"} <= set(load_manifest(out).software)
    assert len(list((out / "logs").glob("*_two_*"))) == 2
    assert len(list((out / "logs").glob("*_one_*"))) == 1


def test_more_pairs_go_on_where_the_first_ones_ended(tmp_path):
    recipe, out, mark = write_recipe(tmp_path), tmp_path / "out", f"more-{os.getpid()}"
    assert bench(recipe, out, mark=mark).returncode == 0
    before = result_files(out)
    assert bench(recipe, out, "--resume", "--pairs", "2", mark=mark).returncode == 0
    after = result_files(out)
    assert {name: after[name] for name in before} == before
    assert len(after) == 2 * len(before)


def test_another_recipe_is_refused(tmp_path):
    recipe, out = write_recipe(tmp_path), tmp_path / "out"
    assert bench(recipe, out, mark="other").returncode == 0
    before = result_files(out)
    recipe.write_text(recipe.read_text().replace("osl = 4", "osl = 5"))
    done = bench(recipe, out, "--resume", mark="other")
    assert done.returncode == 2
    assert "was measured with another recipe" in one_line(done)
    assert result_files(out) == before


def test_what_cannot_be_resumed_is_one_line_and_exit_2(tmp_path):
    recipe = write_recipe(tmp_path)
    done = bench(recipe, tmp_path / "nowhere", "--resume", mark="unused")
    assert done.returncode == 2
    assert "nothing to resume there" in one_line(done)
    assert not (tmp_path / "nowhere").exists()
    broken = tmp_path / "broken" / "state" / "recipe.json"
    broken.parent.mkdir(parents=True)
    broken.write_text("{")
    done = bench(recipe, tmp_path / "broken", "--resume", mark="unused")
    assert done.returncode == 2
    assert "does not say with which recipe" in one_line(done)
    done = bench(recipe, tmp_path / "broken", mark="unused")
    assert done.returncode == 2
    assert "--resume goes on" in one_line(done)
