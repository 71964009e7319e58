"""tests.benchmarks: what makes the page. What is measured is measured by `tox run -e benchmarks -- --quick`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks.page import table, with_figures

ROOT = Path(__file__).parents[2]


def test_a_table_has_a_line_below_its_head() -> None:
    assert table(["", "rows"], [["alone", "1"], ["two", "2"]]) == ("|  | rows |\n|---|---|\n| alone | 1 |\n| two | 2 |")


@pytest.mark.parametrize("name", ["docs/performance.md", "tests/benchmarks/figures.md"])
def test_new_figures_replace_the_old_ones_and_nothing_else(name: str) -> None:
    """On the page as it is: its markers are there, in this order."""
    page = (ROOT / name).read_text()

    once = with_figures(page, "old")

    assert "<!-- figures -->\n\nold\n\n<!-- end of figures -->" in once
    assert with_figures(once, "new") == once.replace("\n\nold\n\n", "\n\nnew\n\n")
    assert (once.partition("<!-- figures")[0], once.partition("<!-- end")[2]) == (
        page.partition("<!-- figures")[0],
        page.partition("<!-- end")[2],
    )
