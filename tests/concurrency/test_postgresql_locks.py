"""PostgreSQL: whose lock a claim waits for, what it gives back, and how many there are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from django_idempotency import (
    IdempotencyConfigurationError,
    OperationInProgress,
    OutcomeUnknown,
    PayloadMismatch,
    StoreBusy,
    run_once,
)
from django_idempotency.maintenance import stuck
from django_idempotency.models import IdempotencyKey
from tests.heard import refusals
from tests.leases import Broken, breaks
from tests.sql import ask

pytestmark = [pytest.mark.only_on("postgresql"), pytest.mark.django_db(transaction=True)]
Threads = Callable[..., list[Any]]
TABLE = IdempotencyKey._meta.db_table


def once(work: Callable[..., Any] = lambda *args: "done", **options: Any) -> Any:
    return run_once(work, **{"scope": "s", "key": "k", "operation": "o", **options}).value


def execute(sql: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql)


def test_a_refused_call_in_an_outer_transaction_holds_no_lock(in_threads: Threads) -> None:
    """Others need not wait for the end of that transaction."""
    with pytest.raises(Broken):
        once(breaks, lease=60, payload=1)
    with transaction.atomic():
        with pytest.raises(PayloadMismatch):
            once(payload=2)
        assert in_threads(1, lambda number: once(payload=1)) == ["done"]


@contextmanager
def migrating(in_threads: Threads, seconds: str, setting: str) -> Iterator[Callable[[Callable[[], Any]], Any]]:
    """Another session alters the key table. Run something meanwhile, with this time-out in its session."""

    def during(work: Callable[[], Any]) -> Any:
        locked, done = Event(), Event()

        def migrate() -> None:
            with transaction.atomic():
                execute(f"LOCK TABLE {TABLE} IN ACCESS EXCLUSIVE MODE")
                locked.set()
                assert done.wait(30)

        def claim() -> Any:
            assert locked.wait(30)
            execute(f"SET {setting} = '{seconds}'")
            try:
                return work()
            finally:
                done.set()

        return in_threads(2, lambda number: (migrate, claim)[number]())[1]

    yield during


@pytest.mark.parametrize("setting", ["lock_timeout", "statement_timeout"])
@pytest.mark.parametrize("wait", [0, 5])
@pytest.mark.parametrize("lease", [None, 60])
def test_a_time_out_of_a_migration_is_busy(in_threads: Threads, setting: str, wait: int, lease: int | None) -> None:
    """Nothing was done. It is no conflict: no worker runs this key. The signal says so."""

    def claim() -> str:
        with refusals() as told, pytest.raises(StoreBusy):
            once(wait=wait, lease=lease)
        assert [outcome for outcome, _ in told] == ["busy"]
        return "busy"

    with migrating(in_threads, "200ms", setting) as during:
        assert during(claim) == "busy"
    assert once(wait=wait) == "done"


def test_without_a_note_the_error_is_the_same(in_threads: Threads) -> None:
    """The key of work that has committed in the middle cannot be noted now: the next retry does it."""
    committed, locked, done = Event(), Event(), Event()

    def half() -> None:
        execute("SELECT 1; COMMIT")
        committed.set()
        assert locked.wait(30)
        raise Broken

    def worker() -> None:
        execute("SET lock_timeout = '100ms'")
        try:
            with pytest.raises(Broken):
                once(half)
        finally:
            done.set()

    def migration() -> None:
        assert committed.wait(30)
        with transaction.atomic():
            execute(f"LOCK TABLE {TABLE} IN ACCESS EXCLUSIVE MODE")
            locked.set()
            assert done.wait(30)

    in_threads(2, lambda number: (worker, migration)[number]())
    assert not stuck().exists()
    with pytest.raises(OutcomeUnknown):
        once()
    assert stuck().count() == 1


def test_a_conflict_is_still_a_conflict(in_threads: Threads) -> None:
    """The wait for the key itself ends by time."""
    with transaction.atomic():
        once()

        def wait(number: int) -> str:
            with pytest.raises(OperationInProgress):
                once(wait=0.2)
            return "conflict"

        assert in_threads(1, wait) == ["conflict"]


@pytest.fixture
def odd_ids() -> Iterator[None]:
    """As on one of two servers that copy their rows to each other."""
    sequence = ask(f"SELECT pg_get_serial_sequence('{TABLE}', 'id')")[0]
    execute(f"ALTER SEQUENCE {sequence} INCREMENT BY 2 RESTART 1")
    yield
    execute(f"ALTER SEQUENCE {sequence} INCREMENT BY 1")


@pytest.mark.usefixtures("odd_ids")
def test_a_transaction_of_very_many_claims_is_stopped() -> None:
    """Before its neighbours get no lock any more. An item that has been done in it stays as the caller decides."""
    room = ask(
        "SELECT current_setting('max_locks_per_transaction')::int * (current_setting('max_connections')::int "
        "+ current_setting('max_prepared_transactions')::int)"
    )[0]

    def many(prefix: str) -> None:
        for number in range(300):
            once(key=f"{prefix}{number}")

    with transaction.atomic():
        with CaptureQueriesContext(connection) as sent:
            many("a")  # few are no matter
        assert sum("pg_locks" in query["sql"] for query in sent) < 10  # it is a slow question
        execute(f"SELECT count(pg_advisory_xact_lock(n)) FROM generate_series(1, {room // 2}) AS n")
        with pytest.raises(IdempotencyConfigurationError, match="Commit in batches"):
            many("b")
        transaction.set_rollback(True)
    assert not IdempotencyKey.objects.exists()


def test_a_server_without_room_for_a_lock_says_what_to_do() -> None:
    """Raised here by a trigger: to fill the lock table would stop the other tests of this server."""
    execute(
        "CREATE FUNCTION no_room() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE 'out of shared memory' USING ERRCODE = '53200'; END $$"
    )
    execute(f"CREATE TRIGGER no_room BEFORE INSERT ON {TABLE} FOR EACH ROW EXECUTE FUNCTION no_room()")
    try:
        with pytest.raises(IdempotencyConfigurationError, match="commit in batches"):
            once()
    finally:
        execute("DROP FUNCTION no_room CASCADE")
    assert once() == "done"


def test_a_committed_claim_has_no_lock_that_could_prove_anything(in_threads: Threads) -> None:
    """So a duplicate of work that has committed in the middle is not told that the work is still running."""

    def commits() -> list[str]:
        execute("SELECT 1; COMMIT")
        return in_threads(1, duplicate)

    def duplicate(number: int) -> str:
        with pytest.raises(OutcomeUnknown):
            once()
        return "unknown"

    assert once(commits) == ["unknown"]
