"""`.ci/run` gives a failed test a second chance, and says so. A real pytest runs tests that are made to fail."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.second_chance import has_one

ROOT = Path(__file__).resolve().parents[2]
FAILS_ONCE = """
from pathlib import Path

def test_passes():
    pass

def test_fails_once():
    flag = Path(__file__).with_suffix(".flag")
    if not flag.exists():
        flag.touch()
        raise AssertionError("only now")
"""
FAILS = "def test_fails():\n    raise AssertionError('each time')\n"


def pytest_on(folder: Path, *options: str, **files: str) -> subprocess.CompletedProcess[str]:
    """Run pytest with the plugin on these files of the folder."""
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    root = folder.parents[1]
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.second_chance", "--rootdir", root, *options, folder],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
    )


def test_a_test_that_fails_once_is_named(tmp_path: Path) -> None:
    """The run passes, also in two processes, and its last line has the count of the first run."""
    done = pytest_on(tmp_path / "tests/unit", "-p", "xdist", "--numprocesses", "2", test_one=FAILS_ONCE)
    assert done.returncode == 0, done.stdout
    assert "\nFLAKY (failed once, passed alone): tests/unit/test_one.py::test_fails_once\n" in done.stdout
    assert " 1 failed, 1 passed in " in done.stdout.splitlines()[-1]


def test_a_test_that_fails_twice_fails_the_run(tmp_path: Path) -> None:
    """Also beside one that fails once only."""
    done = pytest_on(tmp_path / "tests/unit", test_one=FAILS_ONCE, test_two=FAILS)
    assert (done.returncode, "The second chance of 2 failed tests" in done.stdout) == (1, True)
    assert "FLAKY" not in done.stdout


def test_a_race_fails_the_run(tmp_path: Path) -> None:
    """One failure in many runs is what the tests of these folders look for."""
    done = pytest_on(tmp_path / "tests/crash", test_one=FAILS_ONCE)
    assert (done.returncode, "The second chance" in done.stdout) == (1, False)


@pytest.mark.parametrize(
    ("failed", "expected"),
    [
        ([], False),
        (["tests/unit/test_one.py::test_a"], True),
        ([f"tests/unit/test_one.py::test[{number}]" for number in range(5)], True),
        ([f"tests/unit/test_one.py::test[{number}]" for number in range(6)], False),
        *(
            (["tests/unit/test_one.py::test_a", f"tests/{folder}/test_one.py::test_a"], False)
            for folder in ("clusters", "concurrency", "crash", "security")
        ),
    ],
)
def test_who_gets_a_second_chance(failed: list[str], expected: bool) -> None:
    """At most five tests, and none beside a race."""
    assert has_one(failed) is expected
