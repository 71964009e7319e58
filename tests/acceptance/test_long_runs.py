"""tests.long_runs and its page, docs/proof.md: what failed is told, and an old page is refused."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance.pages import ROOT
from tests.long_runs import PARTS, outdated, rows

TOX = """
import os, sys
words = " ".join(sys.argv[1:])
print(words + ": commands[0]> pytest")
if "model" in words:
    print("3 clients, once : 2352150 states, 0 errors")
print("=== 16 passed in 2.00s ===" if "fuzz" not in words else "=== 1 failed in 2.00s ===")
print(".pkg: _exit> python backend.py")
print("  name: OK (2.00 seconds)\\n  congratulations :)")
sys.exit(3 if "fuzz" in words else 0)
"""
"""In the place of tox: says what a run says, and the part `fuzz` fails."""


@pytest.fixture
def page(tmp_path: Path) -> Path:
    (tmp_path / "tox.py").write_text(TOX)
    return tmp_path / "page.md"


def long_runs(page: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.long_runs", "--page", page, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(page.parent)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def told(page: Path) -> list[tuple[str, str]]:
    """Command and outcome of each run, with seeds as `N`."""
    return [(re.sub(r"\d{2,}$", "N", row[0].strip("`")), row[1]) for row in rows(page.read_text())]


def test_a_failed_part_is_told_and_the_others_run(page: Path) -> None:
    """On the page, in the output and by the exit status."""
    done = long_runs(page, "--short", "--only", "fuzz", "--only", "model")
    assert done.returncode == 1
    assert told(page) == [
        ("tox run -e model -- -rP --hypothesis-seed=N", "passed"),
        ("tox run -e fuzz -- --hypothesis-seed=N", "**FAILED** with status 3"),
    ]
    assert "1 failed in 2.00s" in done.stdout
    assert (
        "    3 clients, once : 2352150 states, 0 errors\n    === 16 passed in 2.00s ===\n\n## fuzz" in page.read_text()
    )


def test_a_part_that_runs_again_replaces_its_section_alone(page: Path) -> None:
    """The page's beginning and the other sections stay."""
    row = "| `tox run -e {}` | passed | 0.1.0 | 4ac4cfb | 2026-11-21 | 8 |"
    page.write_text(f"# Title\n\nText.\n\n## fuzz\n\n{row.format('fuzz')}\n\n## mutation\n\n{row.format('mutation')}\n")
    assert long_runs(page, "--short", "--only", "fuzz").returncode == 1
    assert page.read_text().startswith("# Title\n\nText.\n\n## fuzz\n\n")
    assert told(page) == [
        ("tox run -e fuzz -- --hypothesis-seed=N", "**FAILED** with status 3"),
        ("tox run -e mutation", "passed"),
    ]


def test_the_page_has_each_part_and_each_has_passed() -> None:
    """With the seed where the part has one. A part without a run says so."""
    page = (ROOT / "docs/proof.md").read_text()
    assert re.findall(r"(?m)^## ([\w-]+)$", page) == list(PARTS)
    for name, section in zip(PARTS, page.split("\n## ")[1:], strict=True):
        found = rows(section)
        assert bool(found) != ("\nNot run to its end yet for this release." in section), name
        assert {row[1] for row in found} <= {"passed"}
        seed = PARTS[name].seed or ""
        assert [row[0] for row in found if seed not in row[0]] == []


def test_the_page_is_not_older_than_the_last_release_but_one() -> None:
    """Otherwise the long runs have to run again before this release."""
    assert outdated((ROOT / "docs/proof.md").read_text(), (ROOT / "CHANGELOG.md").read_text()) == []
