"""The pages, and the code in them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMMAND = re.compile(r"(?m)^ {4,7}\$ python manage\.py (.*)\n((?: {4,7}(?!<!).*\n)+)")
PAGES = ["README.md", *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md"))]


def blocks(page: str) -> dict[str, str]:
    """The page's python blocks by the file name in their first line."""
    found = re.findall(r"```python\n# (\S+)\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert len(found) == (ROOT / page).read_text().count("```python")
    return dict(found)


def samples(page: str) -> dict[str, str]:
    """What the page shows of the output of each of its commands of `manage.py`."""
    return {command: re.sub(r"(?m)^ {4,7}", "", text) for command, text in COMMAND.findall((ROOT / page).read_text())}


def templates(page: str) -> dict[str, str]:
    """The page's HTML blocks by the file name in their first line."""
    return dict(re.findall(r"```html\n<!-- (\S+) -->\n(.*?)```", (ROOT / page).read_text(), re.DOTALL))
