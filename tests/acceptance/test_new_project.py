"""A new project takes the package in as the README says, and removes it as docs/versions.md says."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.acceptance.pages import ROOT, blocks, samples

MIGRATE_ZERO = "python manage.py migrate django_idempotency zero"
FORGET_TYPES = "python manage.py remove_stale_contenttypes --include-stale-apps"
LOOK_UP = """\
SELECT name FROM sqlite_master WHERE name LIKE '%idempotency%'
UNION ALL SELECT model FROM django_content_type WHERE app_label = 'django_idempotency'
"""

pytestmark = pytest.mark.timeout(600)  # a dozen processes, each of which imports Django


@pytest.fixture
def project(tmp_path: Path) -> Path:
    _run("python -m django startproject config .", tmp_path)
    settings = tmp_path / "config/settings.py"
    (sqlite,) = re.findall(r"(?m)^    (DATABASES\[.*)$", (ROOT / "README.md").read_text())
    settings.write_text(f"{settings.read_text()}{blocks('README.md')['settings.py']}{sqlite}\n")
    return tmp_path


def _run(command: str, folder: Path) -> str:
    """Type a command of a page. Its exit status is 0, and Python's warnings are errors."""
    unset = ("DJANGO_SETTINGS_MODULE", "DATABASE_URL")
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    done = subprocess.run(
        [sys.executable, *command.split()[1:]],
        cwd=folder,
        env={**environment, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_new_project_has_nothing_to_mend(project: Path) -> None:
    """The README's lines end each warning of `startproject`'s SQLite, also those about the table.

    docs/commands.md shows what Django then prints.
    """
    _run("python manage.py migrate --verbosity 0", project)
    ((command, text),) = [one for one in samples("docs/commands.md").items() if one[0].startswith("check ")]
    assert command == "check --fail-level WARNING --database default"
    assert _run(f"python manage.py {command}", project) == text


def test_the_package_is_removed_as_the_page_says(project: Path) -> None:
    """Each command in its order; then nothing of it is left in the database or in Django's tables."""
    page = (ROOT / "docs/versions.md").read_text().partition("## Remove the package")[2].partition("\n## ")[0]
    commands = re.findall(r"(?m)^ +(python manage\.py .*)$", page)
    assert commands[-2:] == [MIGRATE_ZERO, FORGET_TYPES]
    _run("python manage.py migrate --verbosity 0", project)
    assert _left(project)
    for command in commands[:-2]:
        assert re.search(r"\b0\b", _run(command, project))
    _run(f"{MIGRATE_ZERO} --no-input", project)
    settings = project / "config/settings.py"
    settings.write_text(settings.read_text().replace(blocks("README.md")["settings.py"], ""))
    _run(f"{FORGET_TYPES} --no-input", project)
    assert _left(project) == []
    _run("python manage.py check --fail-level WARNING --database default", project)


def _left(project: Path) -> list[str]:
    with closing(sqlite3.connect(project / "db.sqlite3")) as database:
        return [name for (name,) in database.execute(LOOK_UP)]
