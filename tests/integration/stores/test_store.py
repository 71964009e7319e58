"""The contract of a store, on the database at hand: store.py, leases.py, the queries and the module of the database."""

from __future__ import annotations

import pytest
from django.db import connection, transaction

from django_idempotency.engine.protocol.outcomes import Claimed
from django_idempotency.engine.stores import store_for
from django_idempotency.models import IdempotencyKey
from tests.claims import SNAPSHOT, a_claim
from tests.contracts.stores import TestStoreContract

__all__ = ["TestStoreContract"]  # tests, which the partitioned table must pass as well


@pytest.mark.django_db
def test_a_purge_says_where_it_stopped() -> None:
    """The next batch begins there, and not at the rows that were deleted before it. SQLite has no use for it."""
    store = store_for("default")
    with transaction.atomic():
        claimed = store.claim(a_claim(ttl=-5.0))
        assert isinstance(claimed, Claimed)
        store.complete(claimed, SNAPSHOT)
        expired_at = IdempotencyKey.objects.get().expires_at
        deleted, stopped = store.purge(10)
        again = store.purge(10, stopped)
    assert (deleted, again) == (1, (0, stopped))
    assert stopped in ((None,) if connection.vendor == "sqlite" else (expired_at, expired_at.replace(tzinfo=None)))


@pytest.mark.django_db
def test_a_key_that_is_gone_has_expired() -> None:
    """And has no lease to lapse."""
    assert store_for("default").journal.timeliness(2**40, 1) == (True, False)
