"""When a duplicate of a running request should come back."""

from __future__ import annotations

import pytest

from django_idempotency.engine.protocol.outcomes import Conflicted


@pytest.mark.parametrize(
    ("lease_left", "seconds"),
    [(0, 1), (-1e9, 1), (0.2, 1), (1.1, 2), (29.5, 30), (60, 60), (60.1, 60), (86400 * 365, 60)],
)
def test_a_retry_comes_when_the_lease_is_over(lease_left: float, seconds: int) -> None:
    """Rounded up, so that no retry comes a moment too early; 1 to 60 seconds."""
    assert Conflicted(lease_left=lease_left).retry_after == seconds


def test_without_a_lease_it_comes_soon() -> None:
    """An atomic request ends with its transaction."""
    assert Conflicted().retry_after == 1
