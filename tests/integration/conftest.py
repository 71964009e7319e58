from __future__ import annotations

import pytest

from tests import works
from tests.integration import leased_urls, view_urls


@pytest.fixture(autouse=True)
def _clean() -> None:
    """What an earlier test has left in the gateway's books, in the hooks and in the lists of what has run."""
    leased_urls.GATEWAY.reset()
    for left in (leased_urls.HOOKS, view_urls.COMMITS, works.RUNS):
        left.clear()  # type: ignore[attr-defined]
