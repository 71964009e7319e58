"""docs/tutorial.md, word for word: in an empty folder, with a real server and real kill -9."""

from __future__ import annotations

import pytest

from tests.acceptance.tutorial import INSTALLATION, ROOT, Reader, follow_tutorial, reader

__all__ = ["reader"]


@pytest.mark.timeout(INSTALLATION + 120)
def test_the_tutorial_works_as_it_is_written(reader: Reader) -> None:
    """Each file is written, each command typed, and each shows what the page shows."""
    follow_tutorial(reader, (ROOT / "docs/tutorial.md").read_text())
