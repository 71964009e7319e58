"""Files that people copy name their revision, and a command says which copies are old."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest

from django_idempotency.copies import NAMED, REVISIONS, main

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "upgrading.md").read_text()
HASHES = {
    "alerts.yml": "fa57954295cf",
    "client.js": "2c4509f5286e",
    "client.py": "b1bccc71100b",
    "grafana.json": "6a461f675b3e",
    "shards.py": "06c1c5da5c1b",
    "tenant_databases.py": "f37cd648d8dd",
}
"""Of the files without their revision. A file that has changed since the last release gets the next revision."""


def content_hash(name: str) -> str:
    return sha256(NAMED.sub("", (DOCS / name).read_text()).encode()).hexdigest()[:12]


@pytest.mark.parametrize("name", REVISIONS)
def test_each_file_names_its_revision(name: str) -> None:
    found = NAMED.findall((DOCS / name).read_text())
    assert found == [(name, str(REVISIONS[name]))]


@pytest.mark.parametrize("name", REVISIONS)
def test_a_changed_file_has_another_revision(name: str) -> None:
    """If this fails: once a release, raise the revision in the file and in copies.py. In any case, enter the hash."""
    assert content_hash(name) == HASHES[name]


def test_the_page_shows_what_the_command_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An old copy and a new one, as docs/upgrading.md names them."""
    said = re.search(r"(?m)^ {4}\$ python -m django_idempotency\.copies (\S+) (\S+)\n((?: {4}.*\n)+)", PAGE)
    assert said is not None
    old, new = tmp_path / said[1], tmp_path / said[2]
    for copy in (old, new):
        copy.parent.mkdir()
        copy.write_text((DOCS / copy.name).read_text())
    old.write_text(NAMED.sub(r"django-idempotency/\1, revision 1", old.read_text()))
    monkeypatch.chdir(tmp_path)
    assert main([said[1], said[2]]) == 1
    assert capsys.readouterr().out == re.sub(r"(?m)^ {4}", "", said[3])


def test_copies_of_this_release(capsys: pytest.CaptureFixture[str]) -> None:
    """Also if they were adapted."""
    assert main([str(DOCS / name) for name in REVISIONS]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(REVISIONS)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            "# django-idempotency/alerts.yml, revision 1\ngroups: []",
            "is revision 1 of alerts.yml, and this release has 2",
        ),
        ("groups: []", "names no revision, so it is from 0.4.0 or earlier"),
        ("# django-idempotency/rules.yml, revision 7", "is a copy of rules.yml, which this release doesn't have"),
        (None, "cannot be read: No such file or directory"),
    ],
)
def test_old_copies(content: str | None, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One of them is enough, beside those that are right."""
    copy = tmp_path / "ours.yml"
    if content is not None:
        copy.write_text(content)
    assert main([str(DOCS / "alerts.yml"), str(copy)]) == 1
    assert capsys.readouterr().out.splitlines()[1].startswith(f"{copy} {said}")


def test_it_needs_no_project() -> None:
    """As in a CI that only has the package."""
    command = [sys.executable, "-m", "django_idempotency.copies", "docs/client.js"]
    environment = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    root = DOCS.parent
    environment["PYTHONPATH"] = str(root)
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=True)
    assert re.fullmatch(r"docs/client\.js is revision \d+ of client\.js\.\n", done.stdout)
