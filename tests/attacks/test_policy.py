"""What SECURITY.md says is true: tests/security.md and the pages name tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
POLICY = (ROOT / "tests/security.md").read_text()


@pytest.mark.parametrize(
    "page", ["SECURITY.md", "tests/security.md", *(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md"))]
)
def test_every_test_that_is_named_exists(page: str) -> None:
    """By file and function."""
    named = re.findall(r"`(tests/\S+?)::(test_\w+)`", (ROOT / page).read_text())
    assert [(file, name) for file, name in named if f"def {name}(" not in (ROOT / file).read_text()] == []


def test_every_defence_names_a_test_and_every_file_of_this_folder_is_named() -> None:
    """Of the files that attack, at least one test each."""
    rows = [line for line in POLICY.splitlines() if line.startswith(("| ", "* ")) and not line.startswith("| Attack")]
    assert len(rows) > 60
    assert [row for row in rows if "::test_" not in row] == []
    files = {path.name for path in Path(__file__).parent.glob("test_*.py")} - {Path(__file__).name}
    assert files == set(re.findall(r"tests/attacks/(\w+\.py)::", POLICY))
