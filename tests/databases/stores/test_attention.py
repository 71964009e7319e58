"""Which indexes find the keys that need attention. What they are is in ../../contracts/test_attention.py."""

from __future__ import annotations

import pytest
from django.db import connection, transaction

from django_idempotency.engine.protocol.outcomes import Claimed
from django_idempotency.engine.stores import store_for
from django_idempotency.engine.stores.states import EXPIRED
from django_idempotency.maintenance import find_resource, half_done, in_doubt, needs_attention, stuck
from django_idempotency.maintenance.erasure import of_scope
from django_idempotency.maintenance.renamed import expiring_next
from django_idempotency.models import IdempotencyKey
from tests.claims import SNAPSHOT, a_claim, complete
from tests.expired import make_leased
from tests.sql import TABLE
from tests.ways import sql

FILL = """
    INSERT INTO django_idempotency_idempotencykey (
        key_hash, scope_hash, scope, operation, key, status, attempt, effects, status_code, created_at, updated_at,
        expires_at)
    SELECT n, 1, 's', 'POST pay/', n::text, 'completed', 1, 1, 201, now(), now(), now() + interval '1 day'
    FROM generate_series(1, 100000) AS n;
    INSERT INTO django_idempotency_idempotencystep (
        key_id, key_hash, scope_hash, name, kind, attempt, started_at, finished_at, result)
    SELECT id, key_hash, scope_hash, 'charge', 'call', 1, now(), now(), '{}' FROM django_idempotency_idempotencykey
    WHERE status = 'completed';
"""
"""Completed leased keys, each with a finished call."""


@pytest.mark.only_on("postgresql")
@pytest.mark.django_db
def test_what_needs_attention_is_found_among_100_000_keys_by_partial_indexes() -> None:
    """No sequential scan of the keys or of their steps. A key without a lease is found after its `ttl`."""
    for number in range(5):
        make_leased(f"half done {number}", "failed")
        make_leased(f"in doubt {number}", "failed", doubt=True)
        make_leased(f"stuck {number}", "in_progress", lapsed=True)
        make_leased(f"harmless {number}", "in_progress", lapsed=True, call=False)
        make_leased(f"without a lease {number}", "in_progress", call=False)
    with connection.cursor() as cursor:
        cursor.execute(FILL)
        cursor.execute("ANALYZE django_idempotency_idempotencykey, django_idempotency_idempotencystep")
    attention, locked, expires = (f"idempotency_{name}_idx" for name in ("failed", "locked", "expires"))
    expected = [
        (half_done(), 10, {attention, locked}),
        (needs_attention(), 25, {attention, locked, expires}),
        (in_doubt(), 10, {attention, locked, expires}),
        (stuck(), 5, {locked}),
        (needs_attention()[:1000], 25, {attention, locked, expires}),
        (expiring_next("default"), 1000, {expires}),
        (find_resource("order 59"), 0, {"idempotency_resource_idx"}),
        (IdempotencyKey.objects.filter(EXPIRED.condition).order_by("expires_at")[:1], 0, {"idempotency_expires_idx"}),
        (IdempotencyKey.objects.filter(of_scope("user:auth.User:1")), 0, {"idempotency_scope_idx"}),
    ]
    for found, count, indexes in expected:
        plan = found.explain()
        assert {name for name in indexes if name in plan} == indexes, plan
        assert "Seq Scan" not in plan, plan
        assert found.count() == count


@pytest.mark.only_on("postgresql")
@pytest.mark.django_db(transaction=True)
def test_a_completion_changes_no_index() -> None:
    """A HOT update: neither a column nor a condition of an index is about what a completion changes."""

    def hot_updates() -> int:
        """Of this connection, since it has last reported to the statistics."""
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_stat_get_xact_tuples_hot_updated('django_idempotency_idempotencykey'::regclass)")
            return int(cursor.fetchone()[0])

    store = store_for("default")
    sql(f"TRUNCATE {TABLE} CASCADE")  # else rows of other tests, deleted and not yet pruned, fill the page
    with transaction.atomic():
        claim = store.claim(a_claim())
        assert isinstance(claim, Claimed)
        before = hot_updates()
        complete(store, claim, SNAPSHOT)
        assert hot_updates() == before + 1
