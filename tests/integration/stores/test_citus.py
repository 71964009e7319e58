"""The store for Citus, on one server without the extension. tests/clusters has the same statements on three nodes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from threading import Event
from typing import Any

import pytest
from django.db import connection, transaction

from django_idempotency.engine import stores
from django_idempotency.engine.protocol.outcomes import Claimed, Completed
from django_idempotency.engine.stores import Store, store_for
from django_idempotency.engine.stores.citus import CitusStore
from django_idempotency.exceptions import LeaseLost
from django_idempotency.models import IdempotencyStep
from tests.claims import a_claim
from tests.contracts.leased import (
    _clean,
    test_a_takeover_has_one_winner,
    test_a_zombie_commits_nothing_beside_the_winner,
    test_fifty_duplicates_run_once,
)
from tests.contracts.races import SNAPSHOT, store, test_one_of_twenty_wins
from tests.contracts.stores import TestStoreContract
from tests.servers import DEADLINE, eventually

__all__ = [  # tests and their fixtures, run once more
    "TestStoreContract",
    "_clean",
    "store",
    "test_a_takeover_has_one_winner",
    "test_a_zombie_commits_nothing_beside_the_winner",
    "test_fifty_duplicates_run_once",
    "test_one_of_twenty_wins",
]
pytestmark = [
    pytest.mark.only_on("postgresql"),
    pytest.mark.django_db(transaction=True),
    pytest.mark.urls("tests.integration.leased_urls"),
]


@pytest.fixture(autouse=True)
def _chosen(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Where the extension is, `store_for` finds it. Here the store is named."""
    monkeypatch.setitem(stores._STORES, "postgresql", CitusStore)
    store_for.cache_clear()
    yield
    monkeypatch.undo()
    store_for.cache_clear()


KEYS, STEPS = "django_idempotency_idempotencykey", "django_idempotency_idempotencystep"
BESIDE = "a plain table beside distributed tables"
ELSEWHERE = "known to Citus, but not in a distributed schema"
LOCAL, IN_SCHEMA, BY_COLUMN, REFERENCE = ("n", "s", 0), ("n", "s", 7), ("h", "s", 3), ("n", "t", 2)
"""Columns of `pg_dist_partition`: partmethod, repmodel, colocationid."""


@pytest.fixture
def catalog() -> Iterator[Any]:
    """What the check reads of the catalog of Citus. Gives the cursor."""
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE pg_dist_schema (schemaid oid)")
        columns = "logicalrelid regclass, partmethod text, repmodel text, colocationid int"
        cursor.execute(f"CREATE TABLE pg_dist_partition ({columns})")
        yield cursor
        cursor.execute("DROP TABLE pg_dist_partition, pg_dist_schema")


@pytest.mark.parametrize(
    ("distributed", "tables", "told"),
    [
        (False, {}, {}),
        (False, {"shopapp_ledger": LOCAL}, {}),
        (True, {KEYS: IN_SCHEMA, STEPS: IN_SCHEMA, "shopapp_order": IN_SCHEMA}, {}),
        (False, {"shopapp_order": BY_COLUMN}, {KEYS: BESIDE, STEPS: BESIDE}),
        (False, {"shopapp_order": REFERENCE}, {KEYS: BESIDE, STEPS: BESIDE}),
        (False, {KEYS: REFERENCE, STEPS: LOCAL}, {KEYS: ELSEWHERE, STEPS: ELSEWHERE}),
    ],
)
def test_where_the_tables_are(
    catalog: Any, distributed: bool, tables: dict[str, tuple[str, str, int]], told: dict[str, str]
) -> None:
    """E014 names each table from which a key could be lost without its order."""
    if distributed:
        catalog.execute("INSERT INTO pg_dist_schema VALUES ('public'::regnamespace)")
    for table, columns in tables.items():
        catalog.execute("INSERT INTO pg_dist_partition VALUES (%s::text::regclass, %s, %s, %s)", [table, *columns])
    messages = list(store_for("default").check())
    assert [message.id for message in messages] == ["django_idempotency.E014"] * len(told)
    assert [message.msg for message in messages] == [
        f"database 'default' is Citus, and its table {table!r} is {kind}. If a node fails between two commits, an "
        "order can be there without its key, and a retry makes a second order."
        for table, kind in told.items()
    ]


def test_a_duplicate_waits_for_the_response(store: Store, in_threads: Any) -> None:
    """And the time-out of its wait is gone afterwards."""
    claimed, waiting = Event(), "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"

    def first() -> Any:
        claim = store.claim(a_claim())
        claimed.set()
        eventually("the duplicate to wait", lambda: ask(waiting))
        store.complete(claim, SNAPSHOT)

    def duplicate() -> Any:
        assert claimed.wait(DEADLINE)
        return store.claim(a_claim(wait=DEADLINE)), ask("SHOW lock_timeout")

    def work(number: int) -> Any:
        with transaction.atomic():
            # The extension has this setting. Without it, PostgreSQL takes any name with a dot.
            ask("SELECT set_config('citus.propagate_set_commands', 'none', false)")
            return (first, duplicate)[number]()

    assert in_threads(2, work)[1] == (Completed(snapshot=SNAPSHOT), ("0",))


def test_why_a_call_is_in_doubt_is_noted_under_the_fence(store: Store) -> None:
    """Not by a worker whose key was taken over."""
    with transaction.atomic():
        claimed = store.claim(a_claim(lease=60.0))
    assert isinstance(claimed, Claimed)
    store.journal.start_call(claimed, "charge", again=False)
    store.journal.note_error(claimed, "charge", "a time-out")
    with pytest.raises(LeaseLost):
        store.journal.note_error(replace(claimed, attempt=2), "charge", "too late")
    assert IdempotencyStep.objects.get().error == "a time-out"


def ask(sql: str) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchone()
