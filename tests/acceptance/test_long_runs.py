"""tests/proof.md, which tests.long_runs writes: each part has passed, and the page is not too old."""

from __future__ import annotations

import re

from tests.acceptance.pages import ROOT
from tests.long_runs import PARTS, outdated, rows


def test_the_page_has_each_part_and_each_has_passed() -> None:
    """With the seed where the part has one. A part without a run says so."""
    page = (ROOT / "tests/proof.md").read_text()
    assert re.findall(r"(?m)^## ([\w-]+)$", page) == list(PARTS)
    for name, section in zip(PARTS, page.split("\n## ")[1:], strict=True):
        found = rows(section)
        assert bool(found) != ("\nNot run to its end yet for this release." in section), name
        assert {row[1] for row in found} <= {"passed"}
        seed = PARTS[name].seed or ""
        assert [row[0] for row in found if seed not in row[0]] == []


def test_the_page_is_not_older_than_the_last_release_but_one() -> None:
    """Otherwise the long runs have to run again before this release."""
    assert outdated((ROOT / "tests/proof.md").read_text(), (ROOT / "CHANGELOG.md").read_text()) == []
