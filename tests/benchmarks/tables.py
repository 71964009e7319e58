"""A table of the page."""

from __future__ import annotations

from collections.abc import Iterable


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [" | ".join(head), *(" | ".join(row) for row in rows)]
    lines.insert(1, " | ".join("---" for _ in lines[0].split(" | ")))
    return "\n".join(f"| {line} |" for line in lines)
