"""`make lab` opens copies of the notebooks in runs/lab: tracked files stay as they are, and so does what a reader wrote."""

import shutil
import subprocess


def test_copies_are_made_once(tmp_path, repository):
    checkout = tmp_path / "my checkout"
    for folder in ("notebooks", "profiles", "latent_moe"):
        (checkout / folder).mkdir(parents=True)
    shutil.copy(repository / "Makefile", checkout)
    (checkout / "notebooks" / "01_one.ipynb").write_text("as shipped")
    words = ["make", "--no-print-directory", "-n", "lab"]
    printed = subprocess.run(words, cwd=checkout, capture_output=True, text=True, check=True).stdout
    copying = "\n".join(line for line in printed.splitlines() if line.startswith(("mkdir", "ln")))
    copied = checkout / "runs" / "lab" / "notebooks" / "01_one.ipynb"
    subprocess.run(copying, cwd=checkout, shell=True, check=True)
    assert copied.read_text() == "as shipped"
    copied.write_text("worked on")
    subprocess.run(copying, cwd=checkout, shell=True, check=True)
    assert copied.read_text() == "worked on"
    assert (copied.parent / "../profiles").resolve() == checkout / "profiles"
    assert (checkout / "notebooks" / "01_one.ipynb").read_text() == "as shipped"
