"""The distributions of this checkout, built once. Needs the network: tox run -e packaging."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PAIRS = [("3.11", "5.2"), ("3.12", "6.0"), ("3.13", "6.1")]
"""Each supported Django, with a Python that it supports."""
INSTALLATION = 240
"""Seconds until pip has fetched what it needs."""


@dataclass(frozen=True)
class Distributions:
    sdist: Path
    wheel: Path


@pytest.fixture(scope="session")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    """Built out of the checkout; or, for a release, those that will be published, in the folder `BUILT`."""
    if built := os.environ.get("BUILT"):
        return found_in(Path(built))
    return build(ROOT, tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="session")
def rebuilt(distributions: Distributions, tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    """Built out of the unpacked sdist: in another place, with other times and permissions, and without git."""
    folder = tmp_path_factory.mktemp("unpacked")
    subprocess.run(["tar", "-xf", str(distributions.sdist), "-C", str(folder)], check=True)
    (unpacked,) = folder.iterdir()
    for path in unpacked.rglob("*"):
        os.utime(path, (1_000_000_000, 1_000_000_000))
        path.chmod(path.stat().st_mode & 0o700)  # as under another umask; a program stays one
    return build(unpacked, tmp_path_factory.mktemp("rebuilt"))


def build(source: Path, target: Path) -> Distributions:
    pytest.importorskip("build", reason="builds and installs: tox run -e packaging")
    run(sys.executable, "-m", "build", "--outdir", target, source)
    return found_in(target)


def found_in(folder: Path) -> Distributions:
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return Distributions(sdist, wheel)


def run(*command: str | Path, cwd: Path | None = None, fails: bool = False) -> str:
    """Its output, errors included. It knows nothing of these tests' settings. Shown if it fails, or does not."""
    ours = ("DATABASE_URL", "DJANGO_SETTINGS_MODULE", "PYTHONPATH", "SOURCE_DATE_EPOCH")
    done = subprocess.run(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=INSTALLATION,
        check=False,
        cwd=cwd,
        env={name: value for name, value in os.environ.items() if name not in ours},
    )
    assert bool(done.returncode) == fails, done.stdout
    return done.stdout


def interpreter(version: str) -> str:
    """The Python of this version. A pyenv shim that is on PATH need not have one behind it."""
    command = shutil.which(f"python{version}")
    if command is None or subprocess.run([command, "--version"], capture_output=True, check=False).returncode:
        pytest.skip(f"python{version} is not on this machine")
    return command
