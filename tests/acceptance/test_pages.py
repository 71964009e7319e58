"""The pages in proportion: what each may take of its reader's time.

A page has one reader and one job. `BUDGETS` gives the words for that job; a page may exceed them by a fifth. Code isn't
counted. A page that grows past its budget needs a better home for a fact, not a larger number.
"""

from __future__ import annotations

import re

import pytest

from tests.acceptance.pages import PAGES, ROOT

BUDGETS = {
    # Start
    "README.md": 550,
    "docs/index.md": 300,
    "docs/tutorial.md": 950,
    # Build
    "docs/choices.md": 950,
    "docs/views.md": 1250,
    "docs/drf.md": 750,
    "docs/ninja.md": 450,
    "docs/leased.md": 1400,
    "docs/interrupted.md": 1000,
    "docs/events.md": 1300,
    "docs/callers.md": 600,
    "docs/testing.md": 600,
    "docs/clients.md": 900,
    "docs/recipes.md": 900,
    "docs/agentic-commerce.md": 350,
    # Operate
    "docs/operations.md": 1250,
    "docs/monitoring.md": 600,
    "docs/runbook.md": 900,
    "docs/incidents.md": 1100,
    "docs/hangs.md": 350,
    "docs/privacy.md": 500,
    "docs/databases.md": 800,
    "docs/managed-databases.md": 500,
    "docs/backends.md": 800,
    # Reference
    "docs/options.md": 1400,
    "docs/keys.md": 850,
    "docs/problems.md": 400,
    "docs/api.md": 2500,
    "docs/commands.md": 1650,  # two checks more
    "docs/signals.md": 850,  # two generated lists
    "docs/versions.md": 450,
    "docs/upgrading.md": 600,
    # Explain
    "docs/guarantees.md": 1300,
    "docs/how-it-works.md": 650,
    "docs/where.md": 500,
    "docs/performance.md": 600,
    "docs/glossary.md": 250,
    # Beside the pages
    "SECURITY.md": 1300,
    "CONTRIBUTING.md": 1300,
}
CHANGES = 900
"""The words for the changes of one version."""
TABLES, CELL = 2, 25
"""How many tables a page may have, besides generated ones, and how many words a cell."""
WRITTEN = sorted(BUDGETS)
FENCED = re.compile(r"(?ms)^([ ]*)(`{3,})([^\n]*)\n(.*?)^\1\2[ ]*$")


def prose(text: str) -> str:
    """The page without its code; what stands in a box, such as a warning, is part of the text."""
    text = FENCED.sub(lambda box: box[4] if box[3].startswith("{") else "", text)
    text = re.sub(r"(?s)<!--.*?-->", "", text)
    return re.sub(r"(?m)(?<=\n\n)(?:    .*\n+)+", "", text)


def words(text: str) -> int:
    """As a reader counts them: a link is its text, a table has no bars."""
    text = re.sub(r"\]\([^)]*\)", "]", text)
    return len(re.findall(r"\S*\w\S*", text.replace("|", " ")))


def tables(text: str) -> list[str]:
    return re.findall(r"(?m)(?:^ *\|.*\|\n)+", f"{text}\n")


def counted(page: str) -> str:
    return prose((ROOT / page).read_text())


def test_every_page_has_a_budget() -> None:
    """A new page says how long its job takes, and a page that is gone takes its budget with it."""
    assert set(PAGES) <= set(BUDGETS)
    assert {page for page in BUDGETS if not (ROOT / page).exists()} == set()


@pytest.mark.parametrize("page", WRITTEN)
def test_a_page_keeps_to_its_budget(page: str) -> None:
    """Generated parts are counted, too: their reader reads them all the same."""
    assert words(counted(page)) <= BUDGETS[page] * 1.2


@pytest.mark.parametrize("page", WRITTEN)
def test_a_page_has_few_tables(page: str) -> None:
    """Two comparisons are heard; a third one says that two pages are in one."""
    text = re.sub(r"(?s)<!-- generated: .*?<!-- end -->", "", (ROOT / page).read_text())
    assert len(tables(prose(text))) <= TABLES


@pytest.mark.parametrize("page", WRITTEN)
def test_a_cell_is_short(page: str) -> None:
    """What needs more words is a sentence below the table."""
    cells = [cell for table in tables(counted(page)) for cell in re.split(r"(?<!\\)\|", table)]
    assert [cell.strip() for cell in cells if words(cell) > CELL] == []


def test_the_changes_of_a_version_are_read_in_minutes() -> None:
    """By somebody who upgrades, and who has to find what concerns them."""
    versions = re.split(r"(?m)^(?=## )", (ROOT / "CHANGELOG.md").read_text())
    assert {version.partition("\n")[0] for version in versions if words(prose(version)) > CHANGES * 1.2} == set()


def test_words_are_counted_as_a_reader_counts_them() -> None:
    """Code isn't prose, a warning is, and an address of a link takes no time."""
    page = (
        "# Two words\n\n```python\nnothing = 1\n```\n\n    $ nor here\n\n"
        "```{danger}\nThree more words\n```\n\n[a link](its.md#address), and `code` counts.\n\n"
        "| one | two |\n|---|---|\n| three | – |\n"
    )
    assert words(prose(page)) == 2 + 3 + 5 + 3
    assert len(tables(page)) == 1
