"""The contract of a store, on the database at hand: store.py, leases.py, the queries and the module of the database."""

from __future__ import annotations

import pytest

from django_idempotency.engine.stores import store_for
from tests.contracts.stores import TestStoreContract

__all__ = ["TestStoreContract"]  # tests, which the partitioned table must pass as well


@pytest.mark.django_db
def test_a_key_that_is_gone_has_expired() -> None:
    """And has no lease to lapse."""
    assert store_for("default").journal.timeliness(2**40, 1) == (True, False)
