"""A wheel carries a copy of profiles/ as latent_moe/_profiles, so that predict, table and auto work away from the checkout.

Everything else about the build stands in pyproject.toml. An editable install reads profiles/ where it lies.
"""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

# Traces are for whoever has the checkout; the verbs need manifests, tables and run files.
LEFT_OUT = ("*.json.gz", "*.db", "*.md", "figures")


class BuildWithProfiles(build_py):
    """build_py, then the copy of profiles/."""

    def run(self):
        """Build the package; leave profiles/ alone where the install is editable."""
        super().run()
        if not self.editable_mode:
            copy = Path(self.build_lib) / "latent_moe" / "_profiles"
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree("profiles", copy, ignore=shutil.ignore_patterns(*LEFT_OUT))


setup(cmdclass={"build_py": BuildWithProfiles})
