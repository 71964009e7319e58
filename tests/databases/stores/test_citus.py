"""The store for Citus, on one server without the extension. The same statements on three nodes: ../clusters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection

from django_idempotency.engine import stores
from django_idempotency.engine.stores import _store, store_for
from tests.contracts.test_leased import (
    test_a_takeover_has_one_winner,
    test_a_zombie_commits_nothing_beside_the_winner,
    test_fifty_duplicates_run_once,
)
from tests.contracts.test_races import store, test_one_of_twenty_wins
from tests.contracts.test_stores import TestStoreContract

__all__ = [  # tests and their fixtures, run once more
    "TestStoreContract",
    "store",
    "test_a_takeover_has_one_winner",
    "test_a_zombie_commits_nothing_beside_the_winner",
    "test_fifty_duplicates_run_once",
    "test_one_of_twenty_wins",
]
pytestmark = [
    pytest.mark.only_on("postgresql"),
    pytest.mark.django_db(transaction=True),
    pytest.mark.urls("tests.leased_urls"),
]


@pytest.fixture(autouse=True)
def _chosen(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Where the extension is, `store_for` finds it. Here the store is named."""
    monkeypatch.setitem(stores._STORES, "PostgreSQL", "postgresql.CitusStore")
    _store.cache_clear()
    yield
    monkeypatch.undo()
    _store.cache_clear()


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
        "order can be stored without its key, and a retry creates a second one."
        for table, kind in told.items()
    ]
