"""A batch of PostgreSQL's cleanup while other transactions move rows. See Note [Deleting by address]."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from threading import Event
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models import F
from django.test.utils import CaptureQueriesContext

from django_idempotency.engine.protocol.outcomes import Claimed, Completed
from django_idempotency.engine.stores import Store
from django_idempotency.engine.stores.postgresql import PostgreSQLStore
from django_idempotency.maintenance.cleanup import cleanup_idempotency_keys
from django_idempotency.models import IdempotencyKey, IdempotencyStep
from tests.claims import expire
from tests.contracts.races import attempt, finish, store
from tests.servers import DEADLINE, eventually
from tests.sql import ask

__all__ = ["store"]  # a fixture
pytestmark = [pytest.mark.only_on("postgresql"), pytest.mark.django_db(transaction=True)]
Threads = Callable[..., list[Any]]
TABLE, STEPS = IdempotencyKey._meta.db_table, IdempotencyStep._meta.db_table
GATE = "1, 7316402"
"""An advisory lock that no key has: of two numbers."""
WAITING = f"SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND (classid, objid) = ({GATE}) AND NOT granted"
CLOCK = (
    "CREATE OR REPLACE FUNCTION gated_clock() RETURNS timestamptz LANGUAGE plpgsql AS $$ BEGIN "
    f"PERFORM pg_advisory_xact_lock_shared({GATE}); RETURN clock_timestamp(); END $$"
)


class GatedStore(PostgreSQLStore):
    """The clock of its batches stops at a gate: a batch has its snapshot there, and has not looked for rows yet."""

    dialect = replace(PostgreSQLStore.dialect, clock_once="(SELECT gated_clock())")


def execute(*statements: str) -> None:
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


@pytest.fixture
def _clock() -> Iterator[None]:
    execute(CLOCK)
    yield
    execute("DROP FUNCTION gated_clock")


def expire_with_old0_first(store: Store, keys: int) -> None:
    """Keys old0, old1 and so on, which have all expired. The one that expired first is old0."""
    for number in range(keys):
        finish(store, key=f"old{number}")
    expire()
    IdempotencyKey.objects.filter(key="old0").update(expires_at=F("expires_at") - timedelta(hours=1))


def purge_around(in_threads: Threads, change: Callable[[], None]) -> tuple[int, Any]:
    """A batch of 10. The change happens after its snapshot, and before its first look at a row."""
    closed = Event()

    def work(number: int) -> Any:
        if number:
            execute(f"SELECT pg_advisory_lock({GATE})")
            closed.set()
            eventually("the batch at the gate", lambda: ask(WAITING)[0])
            change()
            return execute("SELECT pg_advisory_unlock_all()")
        assert closed.wait(DEADLINE)
        with transaction.atomic():
            return GatedStore("default").purge(10)

    outcome: tuple[int, Any] = in_threads(2, work)[0]
    return outcome


def stored() -> set[str]:
    return set(IdempotencyKey.objects.values_list("key", flat=True))


@pytest.mark.usefixtures("_clock")
class TestAddresses:
    def test_a_row_that_has_moved_is_deleted_and_no_other_one(self, store: Store, in_threads: Threads) -> None:
        """Another row cannot be where it was: not even after a VACUUM, while the batch has its snapshot."""
        for key in ("stays", "moves"):
            finish(store, key=key)
        expire()
        living = {f"new{number}" for number in range(50)}

        def move() -> None:
            IdempotencyKey.objects.filter(key="moves").update(last_error="changed")
            execute(f"VACUUM {TABLE}")
            for key in living:
                finish(store, key=key)

        assert purge_around(in_threads, move)[0] == 2
        assert stored() == living
        assert {type(attempt(store, key=key)) for key in living} == {Completed}

    def test_a_key_that_was_taken_over_lives(self, store: Store, in_threads: Threads) -> None:
        """The batch takes its row's newest version, which has not expired. The next expired key takes its place."""
        expire_with_old0_first(store, keys=11)

        def take_over() -> None:
            assert isinstance(attempt(store, key="old0"), Claimed)

        assert purge_around(in_threads, take_over)[0] == 10
        assert stored() == {"old0"}
        assert isinstance(attempt(store, key="old0"), Completed)

    def test_all_rows_that_have_moved_are_deleted_in_order(self, store: Store, in_threads: Threads) -> None:
        """And the next batch begins at the last of them."""
        finish(store)
        expire()
        expired_at = IdempotencyKey.objects.get().expires_at

        def move() -> None:
            IdempotencyKey.objects.update(last_error="changed")

        assert purge_around(in_threads, move) == (1, expired_at)

    def test_a_row_that_has_moved_does_not_make_a_batch_larger(self, store: Store, in_threads: Threads) -> None:
        """Only as many rows as have moved are deleted by their ids."""
        expire_with_old0_first(store, keys=12)

        def move() -> None:
            IdempotencyKey.objects.filter(key="old0").update(last_error="changed")

        assert purge_around(in_threads, move)[0] == 10
        assert len(stored() - {"old0"}) == 2

    def test_a_row_that_is_gone_is_not_counted(self, store: Store, in_threads: Threads) -> None:
        """Another cleaner has deleted it and committed."""
        finish(store)
        expire()
        assert purge_around(in_threads, lambda: IdempotencyKey.objects.all()._raw_delete("default")) == (0, None)


def test_a_plain_table_is_cleaned_by_address(store: Store) -> None:
    """A batch by id takes a sixth longer."""
    finish(store)
    expire()
    with CaptureQueriesContext(connection) as captured:
        assert cleanup_idempotency_keys().deleted == 1
    deletes = [query["sql"] for query in captured if "DELETE" in query["sql"]]
    assert ["ctid" in sql for sql in deletes] == [True]


@contextmanager
def child() -> Iterator[str]:
    """A table that inherits from the key table: every query reads its rows, and they have addresses of their own."""
    name = "child_of_keys"
    execute(f"CREATE TABLE {name} () INHERITS ({TABLE})")
    try:
        yield name
    finally:
        execute(f"DROP TABLE {name}", f"ANALYZE {TABLE}")  # forgets that there was one


def test_a_key_that_is_held_at_the_same_address_is_passed_over(store: Store, in_threads: Threads) -> None:
    """By address, a batch would take the key in the other table along, and wait for its lock."""
    with child() as name:
        for number in range(4):
            finish(store, key=f"held{number}")
        expire()
        execute(f"INSERT INTO {name} SELECT * FROM {TABLE}", f"TRUNCATE ONLY {TABLE}, {STEPS}")
        finish(store, key="old")
        IdempotencyKey.objects.filter(key="old").update(expires_at=F("created_at") - timedelta(days=1))
        assert ask(f"SELECT count(*) FROM {TABLE} WHERE ctid = (SELECT ctid FROM ONLY {TABLE})")[0] == 2

        def clean(_: int) -> int:
            execute("SET lock_timeout = '7s'")
            return cleanup_idempotency_keys().deleted

        with transaction.atomic():
            assert len(IdempotencyKey.objects.select_for_update().filter(key__startswith="held")) == 4
            assert in_threads(1, clean) == [1]
        assert stored() == {f"held{number}" for number in range(4)}
