"""The page that the figures go into."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

START, END = "<!-- figures -->", "<!-- end of figures -->"


def table(head: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [" | ".join(head), *(" | ".join(row) for row in rows)]
    lines = [f"| {line} |" for line in lines]
    lines.insert(1, "|" + "---|" * len(head))
    return "\n".join(lines)


def with_figures(page: str, figures: str) -> str:
    """The page with these figures instead of those between its two markers."""
    before, after = page[: page.index(START) + len(START)], page[page.index(END) :]
    return f"{before}\n\n{figures}\n\n{after}"
