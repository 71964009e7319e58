"""`ClaimRequest`: the wish of one request for a key."""

from __future__ import annotations

from dataclasses import replace

from tests.claims import a_claim


def test_wait_is_one_time_for_the_whole_claim() -> None:
    """A claim that begins again, after a deadlock, has what is left of it."""
    begun = a_claim(wait=5).begun()
    assert begun.deadline is not None
    assert begun.begun() is begun
    assert replace(begun, deadline=0.0).left == 0
    assert a_claim(wait=0).begun().deadline is None
