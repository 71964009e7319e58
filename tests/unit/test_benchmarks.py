"""tests.benchmarks: what makes the page. What is measured is measured by `tox run -e benchmarks -- --quick`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks.page import table, with_part

ROOT = Path(__file__).parents[2]


def test_a_table_has_a_line_below_its_head() -> None:
    assert table(["", "rows"], [["alone", "1"], ["two", "2"]]) == ("|  | rows |\n|---|---|\n| alone | 1 |\n| two | 2 |")


@pytest.mark.parametrize(
    ("name", "part"),
    [("docs/performance.md", "answer"), ("docs/performance.md", "figures"), ("tests/benchmarks/figures.md", "figures")],
)
def test_new_figures_replace_the_old_ones_and_nothing_else(name: str, part: str) -> None:
    """On the page as it is: its markers are there, in this order."""
    page = (ROOT / name).read_text()

    once = with_part(page, part, "old")

    assert f"<!-- {part} -->\n\nold\n\n<!-- end of {part} -->" in once
    assert with_part(once, part, "new") == once.replace("\n\nold\n\n", "\n\nnew\n\n")
    assert (once.partition(f"<!-- {part}")[0], once.partition(f"<!-- end of {part}")[2]) == (
        page.partition(f"<!-- {part}")[0],
        page.partition(f"<!-- end of {part}")[2],
    )


def test_the_page_begins_with_five_lines() -> None:
    """As the benchmarks write them: five points, and then a heading."""
    page = (ROOT / "docs" / "performance.md").read_text()
    before, after = page.split("<!-- answer -->")
    points, rest = after.split("<!-- end of answer -->")
    assert before == "# Performance\n\n"
    assert [line[:4] for line in points.strip().splitlines()] == ["* **"] * 5
    assert rest.lstrip().startswith("## ")
