"""The PostgreSQL of the wheel, on a machine where another user has started one before."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.pages import ROOT

pytestmark = pytest.mark.only_on("postgresql")


@pytest.fixture
def taken() -> Iterator[Path]:
    """A folder for temporary files, in which nothing can be written to the lock of the first user."""
    with tempfile.TemporaryDirectory(prefix="taken-") as folder:  # short: the path of a socket has a limit
        (Path(folder) / ".lockfile").mkdir()
        yield Path(folder)


@pytest.mark.parametrize(("folder", "module"), [("testproject", "config.database"), (".", "tests.databases")])
def test_each_user_has_a_lock_of_their_own(taken: Path, folder: str, module: str) -> None:
    """The demo and the tests start."""
    start = f"from {module} import embedded_postgresql; print(embedded_postgresql())"
    done = subprocess.run(
        [sys.executable, "-c", start],
        cwd=ROOT / folder,
        env={**os.environ, "TMPDIR": str(taken), "XDG_RUNTIME_DIR": str(taken / "user"), "PYTHONPATH": "."},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.stdout.startswith("postgresql://"), done.stderr
