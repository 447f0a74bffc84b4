"""environment.yml (conda) asks for just what pyproject.toml (pip) asks for."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parent.parent
# One NVRTC for everybody, so NVIDIA's parts and CuPy come from PyPI in a conda environment too.
FROM_PYPI = re.compile(r"cuda-|nvidia-|cupy|ncu-")
CONDA_ONLY = {"python", "pip"}
LEFT_OUT = {"playwright"}  # extra `browser`: for the developers of perflab


def named(requirements: list[str]) -> dict[str, str]:
    """Name -> version range; a marker says nothing that a conda environment, made on Linux, needs."""
    parts = [re.fullmatch(r"([\w.-]+)\s*([^;]*?)\s*(;.*)?", text) for text in requirements]
    return {part[1].lower(): part[2].replace(" ", "") for part in parts if part}


def pyproject() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def wanted() -> dict[str, str]:
    project = pyproject()
    extras = [requirement for extra in project["optional-dependencies"].values() for requirement in extra]
    everything = named([*project["dependencies"], *extras])
    return {name: spec for name, spec in everything.items() if name not in LEFT_OUT}


def environment() -> tuple[dict[str, str], list[str]]:
    """What conda installs, and the lines for pip."""
    entries = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    (pip,) = [entry["pip"] for entry in entries if isinstance(entry, dict)]
    return named([entry for entry in entries if isinstance(entry, str)]), pip


def test_conda_brings_all_that_is_not_nvidia_s():
    conda, _ = environment()
    assert conda["python"] == pyproject()["requires-python"]
    have = {name: spec for name, spec in conda.items() if name not in CONDA_ONLY}
    assert have == {name: spec for name, spec in wanted().items() if not FROM_PYPI.match(name)}


def test_nvidia_s_parts_and_perflab_come_by_pip():
    _, pip = environment()
    assert pip.count("-e .") == 1
    have = named([line for line in pip if line != "-e ."])
    assert have == {name: spec for name, spec in wanted().items() if FROM_PYPI.match(name)}


def test_the_lock_pins_every_dependency_with_hashes():
    lock = (ROOT / "requirements.lock").read_text()
    pinned = {match[1].lower(): match[2] for match in re.finditer(r"^([\w.-]+)==(\S+)", lock, re.MULTILINE)}
    assert wanted().keys() | LEFT_OUT <= pinned.keys()
    entries = re.split(r"^(?=[\w.-]+==)", lock, flags=re.MULTILINE)[1:]
    assert all("--hash=sha256:" in entry for entry in entries)
    assert not re.search(r"https?://", lock)
