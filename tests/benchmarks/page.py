"""The page that the figures go into."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [" | ".join(head), *(" | ".join(row) for row in rows)]
    lines = [f"| {line} |" for line in lines]
    lines.insert(1, "|" + "---|" * len(head))
    return "\n".join(lines)


def with_part(page: str, name: str, text: str) -> str:
    """The page with this text instead of what is between the two markers of that name."""
    start, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    before, old = page[: page.index(start) + len(start)], page[: page.index(end)]
    return f"{before}\n\n{text}{page[len(old.rstrip()) :]}"
