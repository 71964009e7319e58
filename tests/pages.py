"""Pages of which a command writes a part."""

from __future__ import annotations


def with_part(page: str, name: str, text: str) -> str:
    """The page with this text instead of what is between the only marker of that name and the next end."""
    marker = f"<!-- generated: {name} -->"
    head, rest = page.split(marker)
    old = rest[: rest.index("<!-- end -->")]
    # The white space before the end stays: after a paragraph or a list, the end is a part of it.
    return f"{head}{marker}\n\n{text}{rest[len(old.rstrip()) :]}"
