"""PostgreSQL: whose lock a claim waits for, what it gives back, and how many there are."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any

import pytest
from django.db import connection, connections, transaction

from django_idempotency import (
    IdempotencyConfigurationError,
    OutcomeUnknown,
    PayloadMismatch,
    StoreBusy,
    run_once,
)
from django_idempotency.engine.stores import messages
from django_idempotency.models import IdempotencyKey
from tests.at_once import CALLERS
from tests.heard import refusals
from tests.leases import Broken, breaks
from tests.servers import eventually
from tests.sql import ask, has_setting

pytestmark = [pytest.mark.only_on("postgresql"), pytest.mark.django_db(transaction=True)]
Threads = Callable[..., list[Any]]
TABLE = IdempotencyKey._meta.db_table


def once(work: Callable[..., Any] = lambda *args: "done", **options: Any) -> Any:
    return run_once(work, **{"scope": "s", "key": "k", "operation": "o", **options}).value


def execute(sql: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql)


@CALLERS
def test_a_refused_call_in_an_outer_transaction_holds_no_lock(in_threads: Threads, caller: Any) -> None:
    """Others need not wait for the end of that transaction."""
    with pytest.raises(Broken):
        once(breaks, lease=60, payload=1)
    with caller():
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
                assert done.wait(30), "the claim never gave up"

        def claim() -> Any:
            assert locked.wait(30), "the migration never had its lock"
            execute(f"SET {setting} = '{seconds}'")
            try:
                return work()
            finally:
                done.set()

        return in_threads(2, lambda number: (migrate, claim)[number]())[1]

    yield during


@pytest.mark.parametrize("setting", ["lock_timeout", "statement_timeout", "transaction_timeout"])
@pytest.mark.parametrize("wait", [0, 5])
@pytest.mark.parametrize("lease", [None, 60])
def test_a_time_out_of_a_migration_is_busy(in_threads: Threads, setting: str, wait: int, lease: int | None) -> None:
    """Nothing was done. It is no conflict: no worker runs this key. The signal says so."""

    def claim() -> str:
        with refusals() as told, pytest.raises(StoreBusy):
            once(wait=wait, lease=lease)
        assert [outcome for outcome, _ in told] == ["busy"]
        return "busy"

    has_setting(setting)
    with migrating(in_threads, "200ms", setting) as during:
        assert during(claim) == "busy"
    assert once(wait=wait) == "done"


@pytest.mark.skipif(
    connection.Database.__name__ == "psycopg2", reason="a statement of psycopg2 runs in C, which no signal interrupts"
)
@pytest.mark.parametrize("lease", [None, 60])
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, TimeoutError])
@pytest.mark.parametrize("soon", [60_000, 0, None, "sent"])
def test_a_claim_that_waits_for_a_migration_sees_a_signal(
    monkeypatch: pytest.MonkeyPatch, soon: int | str | None, kind: type[BaseException], lease: int | None
) -> None:
    """As Django's own cursor does. The server does not wait for the lock any longer, either.

    It waits by itself at first, and then as psycopg does; on Windows, which has no poll(), from the beginning. The
    signal may also come before it waits, when the message has just been sent.
    """
    once(key="warms-up", lease=lease)
    locked, ended, seen = Event(), Event(), []

    def poll() -> Any:
        eventually("the signal", ended.is_set)
        return select.poll()

    if soon is None:
        monkeypatch.setattr(messages, "POLL", None)
    elif soon == "sent":
        monkeypatch.setattr(messages, "POLL", poll)
    else:
        monkeypatch.setattr(messages, "SOON", soon)
    (claims,) = ask("SELECT pg_backend_pid()")  # by its number: other processes of the server can wait as well
    waiting = f"SELECT count(*) FROM pg_locks WHERE relation = '{TABLE}'::regclass AND NOT granted AND pid = {claims}"

    def interrupt(number: int, frame: Any) -> None:
        raise kind

    def migrate() -> None:
        try:
            with transaction.atomic():
                execute(f"LOCK TABLE {TABLE} IN ACCESS EXCLUSIVE MODE")
                locked.set()
                eventually("the claim waits", lambda: ask(waiting) == (1,))
                os.kill(os.getpid(), signal.SIGUSR1)
                seen.append(ended.wait(5))
                eventually("it waits no more", lambda: ask(waiting) == (0,))
        finally:
            connections.close_all()

    usual = signal.signal(signal.SIGUSR1, interrupt)
    migration = Thread(target=migrate)
    try:
        migration.start()
        assert locked.wait(30), "the migration never had its lock"
        with pytest.raises(kind):
            once(lease=lease)
        ended.set()
        migration.join(30)
    finally:
        signal.signal(signal.SIGUSR1, usual)
    assert seen == [True]
    assert once(lease=lease) == "done"


def test_a_server_without_room_for_a_lock_says_what_to_do() -> None:
    """Raised here by a trigger: to fill the lock table would stop the other tests of this server."""
    execute(
        "CREATE FUNCTION no_room() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE 'out of shared memory' USING ERRCODE = '53200'; END $$"
    )
    execute(f"CREATE TRIGGER no_room BEFORE INSERT ON {TABLE} FOR EACH ROW EXECUTE FUNCTION no_room()")
    try:
        with pytest.raises(IdempotencyConfigurationError, match=r"out of shared memory.*commit in batches"):
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
