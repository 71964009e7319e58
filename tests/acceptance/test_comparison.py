"""results.md of the comparison: our own column."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.acceptance.pages import ROOT

SCRIPTS = ROOT / "tests/benchmarks/comparison"
PAGE = SCRIPTS / "results.md"
OURS = "django-idempotency"


def tables(text: str) -> list[dict[str, dict[str, str]]]:
    """Each table by column and row."""
    found = []
    for table in re.findall(r"(?m)(?:^\|.*\n)+", text):
        titles, _, *rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()]
        found.append({title: {row[0].strip(): row[i] for row in rows} for i, title in enumerate(titles)})
    return found


@pytest.mark.timeout(300)
def test_our_column_is_true() -> None:
    """The script prints it again; the other packages are not here."""
    pytest.importorskip("rest_framework")
    printed = subprocess.run(
        [sys.executable, SCRIPTS / "compare.py", OURS], stdout=subprocess.PIPE, text=True, check=True, timeout=280
    ).stdout

    text = PAGE.read_text()
    first, second = ({**table[OURS], "Runs with": ""} for table in tables(text))
    # The second table leaves out the rows that are as in the first.
    for ours, page in zip(tables(printed), (first, first | second), strict=True):
        assert {**ours[OURS], "Runs with": ""} == page
