"""The page that the figures go into."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [" | ".join(head), *(" | ".join(row) for row in rows)]
    lines = [f"| {line} |" for line in lines]
    lines.insert(1, "|" + "---|" * len(head))
    return "\n".join(lines)
