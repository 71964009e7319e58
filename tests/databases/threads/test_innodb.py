"""InnoDB, the engine of MariaDB and MySQL: what isolation levels and settings of the server do to a claim."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from threading import Barrier
from time import monotonic
from typing import Any

import pytest
from django.db import IntegrityError, OperationalError, connection, transaction

from django_idempotency import Operation, OperationInProgress, run_once
from django_idempotency.engine.protocol.outcomes import Claimed, ClaimRequest, Completed, Conflicted, InDoubt
from django_idempotency.engine.stores import Store
from django_idempotency.models import IdempotencyKey, IdempotencyStep
from tests.at_once import beside, once
from tests.claims import a_claim, claim_and_commit, complete, expire
from tests.contracts.test_races import SNAPSHOT, attempt, finish, isolation, store
from tests.leases import Broken, lapse
from tests.servers import DEADLINE
from tests.sql import ask

__all__ = ["isolation", "store"]  # fixtures
Threads = Callable[..., list[Any]]
pytestmark = [pytest.mark.only_on("mysql"), pytest.mark.django_db(transaction=True)]


@pytest.mark.usefixtures("isolation")
@pytest.mark.parametrize("isolation", ["read uncommitted"], indirect=True)
def test_a_look_shows_nothing_that_is_not_committed(store: Store, in_threads: Threads) -> None:
    """Under READ UNCOMMITTED a plain read would show it."""
    with transaction.atomic():
        claimed = store.claim(a_claim())
        assert isinstance(claimed, Claimed)
        complete(store, claimed, SNAPSHOT)
        assert in_threads(1, lambda _: store.look(a_claim())) == [Conflicted()]


LEVELS = ["read committed", "read uncommitted", "repeatable read", "serializable", None]


@pytest.mark.usefixtures("isolation")
@pytest.mark.parametrize("isolation", LEVELS, indirect=True)
def test_replays_at_once_get_the_answer(store: Store, in_threads: Threads) -> None:
    """An earlier version locked the row, and 152 of 400 replays under REPEATABLE READ got 409."""
    finish(store)
    barrier = Barrier(10, timeout=DEADLINE)

    def replay(number: int) -> list[Any]:
        barrier.wait()
        return [attempt(store) for _ in range(20)]

    assert in_threads(10, replay) == [[Completed(snapshot=SNAPSHOT)] * 20] * 10


@pytest.mark.usefixtures("isolation")
@pytest.mark.parametrize("isolation", LEVELS, indirect=True)
def test_a_duplicate_waits_as_long_as_it_was_told(in_threads: Threads, isolation: None, request: Any) -> None:
    """And its session keeps its lock timeout. The exception is MySQL under the levels that check W002 warns about."""
    waits_for_the_lock = not connection.mysql_is_mariadb and "committed" not in request.node.name

    def duplicate() -> tuple[float, Any]:
        with connection.cursor() as cursor:
            cursor.execute("SET innodb_lock_wait_timeout = 4")
        begun = monotonic()
        with pytest.raises(OperationInProgress):
            once(lambda: None, wait=1)
        return monotonic() - begun, ask("SELECT @@innodb_lock_wait_timeout")[0]

    seconds, timeout = beside(in_threads, duplicate)
    assert timeout == 4
    assert 1 <= seconds < 3 or (waits_for_the_lock and 4 <= seconds < 6)


def claimed_with_an_old_snapshot(store: Store, claim: ClaimRequest) -> Any:
    """None: MariaDB has innodb_snapshot_isolation, and leaves the claim to a new transaction.

    A conflict is as right: it comes where the settings say READ COMMITTED, and the transaction has another level.
    """
    try:
        return store.claim(claim)
    except OperationalError as error:
        if store.code(error) not in store.repeatable:
            raise
        transaction.set_rollback(True)
        return None


def test_an_old_snapshot_does_not_hide_a_call(store: Store, in_threads: Threads) -> None:
    """Under REPEATABLE READ a plain read would not show the call, and the takeover would make it again."""
    claim = a_claim(lease=60.0)
    claimed = claim_and_commit(store, claim)
    assert isinstance(claimed, Claimed)
    lapse()
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        assert IdempotencyStep.objects.count() == 0
        in_threads(1, lambda _: store.journal.start_call(claimed, "charge", keyed=False))
        assert IdempotencyStep.objects.count() == 0
        assert claimed_with_an_old_snapshot(store, claim) in (InDoubt(), Conflicted(), None)


def test_an_old_snapshot_does_not_hide_finished_steps(store: Store, in_threads: Threads) -> None:
    """Nor from work in atomic mode: a plain read would not show them, and the finished call would be made again."""

    def run_and_die(_: int) -> None:
        with suppress(Broken):
            run_once(charge_and_die, scope="s", key="k", operation="pay", lease=60)

    def charge_and_die(operation: Operation) -> None:
        operation.call("charge", lambda: "ch_1")
        raise Broken

    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        assert IdempotencyStep.objects.count() == 0
        in_threads(1, run_and_die)
        assert IdempotencyStep.objects.count() == 0
        atomic = a_claim(scope="s", key="k", operation="pay", fingerprint=None)
        assert claimed_with_an_old_snapshot(store, atomic) in (InDoubt(attempt=1), Conflicted(), None)


def test_without_deadlock_detection_one_rival_takes_an_expired_key_over(store: Store, in_threads: Threads) -> None:
    """A rival locks the row at once, and never after a weaker lock. So no two rivals wait for each other."""
    assert attempt(store) is not None
    expire()
    barrier = Barrier(10, timeout=60)

    def race(number: int) -> Any:
        with connection.cursor() as cursor:
            cursor.execute("SET innodb_lock_wait_timeout = 2")
        barrier.wait()
        return attempt(store)

    with connection.cursor() as cursor:
        cursor.execute("SET GLOBAL innodb_deadlock_detect = OFF")
    try:
        outcomes = in_threads(10, race)
    finally:
        with connection.cursor() as cursor:
            cursor.execute("SET GLOBAL innodb_deadlock_detect = ON")
    assert sum(isinstance(outcome, Claimed) for outcome in outcomes) == 1, outcomes


def test_an_error_about_anything_else_is_no_duplicate(store: Store) -> None:
    """Such as a constraint that the project has added to the table."""
    table = IdempotencyKey._meta.db_table
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {table} ADD CONSTRAINT no_such_scope CHECK (scope <> 'forbidden')")
    try:
        assert isinstance(attempt(store, scope="forbidden"), IntegrityError)
    finally:
        with connection.cursor() as cursor:
            cursor.execute(f"ALTER TABLE {table} DROP CONSTRAINT no_such_scope")
