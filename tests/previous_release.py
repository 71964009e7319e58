"""The tests of an earlier release, with its code, against the schema of this one: what a deployment meets that migrates
the database first and replaces its servers one by one afterwards.

    python -m tests.previous_release [REVISION] [pytest's arguments]

REVISION: of the earlier release; default: the newest tag that is not this very commit, and without tags 0.1.0.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
FIRST = "4ac4cfb5f658513383e61d8784a45291ddd2a4c4"
"""Version 0.1.0."""
MIGRATIONS = Path("django_idempotency/migrations")
SCHEMA_TESTS = "tests/integration/test_migrations.py"
"""What these test is the earlier release's own migrations."""
BY_CHANCE = "tests/integration/test_cleanup.py::test_a_batch_reads_what_it_deletes_and_no_more"
"""A test of 0.1.0 that reads a plan: what earlier tests have rolled back decides which."""
IN_PROCESS = ("tests/unit", "tests/integration", "tests/concurrency", "tests/rest_framework")


def main(*arguments: str) -> int:
    revision = arguments[0] if arguments and not arguments[0].startswith("-") else None
    chosen = arguments[1:] if revision else arguments
    revision = revision or _newest_tag() or FIRST
    with tempfile.TemporaryDirectory() as folder:
        earlier = Path(folder)
        if not unpack(revision, earlier):
            print(f"The history of this checkout has no {revision!r}. Name a revision that it has, or fetch all of it.")
            return 1
        shutil.rmtree(earlier / MIGRATIONS)
        shutil.copytree(ROOT / MIGRATIONS, earlier / MIGRATIONS)
        print(f"{revision}, its tests and its code, with these migrations:")
        print(*sorted(path.stem for path in (earlier / MIGRATIONS).glob("0*.py")), flush=True)
        left_out = (f"--ignore={SCHEMA_TESTS}", f"--deselect={BY_CHANCE}")
        command = [sys.executable, "-m", "pytest", *IN_PROCESS, *left_out, *chosen]
        return subprocess.run(command, cwd=earlier, check=False).returncode


def unpack(revision: str, folder: Path) -> bool:
    """Put a revision's files into a folder. False if the history of this checkout does not have it."""
    archive = subprocess.run(["git", "archive", revision], cwd=ROOT, capture_output=True, check=False)
    if archive.returncode:
        return False
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    return True


def _newest_tag() -> str | None:
    """Reachable from the commit before this one: on a release's own commit, the release before."""
    found = subprocess.run(
        ["git", "describe", "--tags", "--abbrev=0", "HEAD~1"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return found.stdout.strip() or None


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
