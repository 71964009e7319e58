"""InnoDB, the engine of MariaDB and MySQL: what isolation levels and settings of the server do to a claim."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from threading import Barrier
from typing import Any

import pytest
from django.db import IntegrityError, OperationalError, connection, transaction

from django_idempotency import Operation, run_once
from django_idempotency.engine.protocol.outcomes import Claimed, ClaimRequest, Conflicted, InDoubt
from django_idempotency.engine.stores import Store
from django_idempotency.models import IdempotencyKey, IdempotencyStep
from tests.claims import a_claim, claim_and_commit, expire
from tests.contracts.races import SNAPSHOT, attempt, isolation, store
from tests.leases import Broken, lapse
from tests.servers import eventually
from tests.shopapp.models import Order

__all__ = ["isolation", "store"]  # fixtures
Threads = Callable[..., list[Any]]
pytestmark = [pytest.mark.only_on("mysql"), pytest.mark.django_db(transaction=True)]
WORKER = """
import sys

import django

django.setup()

from django.db import IntegrityError, connection, transaction

from django_idempotency.engine.stores import store_for
from django_idempotency.models import IdempotencyKey
from tests.claims import a_claim
from tests.shopapp.models import Order

connection.settings_dict["NAME"] = sys.argv[1]
with transaction.atomic():
    store_for("default").claim(a_claim())
    Order.objects.create(reference="lost", amount=1)
    print("claimed", flush=True)
    sys.stdin.read()
"""


@pytest.mark.usefixtures("isolation")
@pytest.mark.parametrize("isolation", ["read uncommitted"], indirect=True)
def test_a_look_shows_nothing_that_is_not_committed(store: Store, in_threads: Threads) -> None:
    """Under READ UNCOMMITTED a plain read would show it."""
    with transaction.atomic():
        claimed = store.claim(a_claim())
        assert isinstance(claimed, Claimed)
        store.complete(claimed, SNAPSHOT)
        assert in_threads(1, lambda _: store.look(a_claim())) == [Conflicted()]


def claimed_with_an_old_snapshot(store: Store, claim: ClaimRequest) -> Any:
    """None: MariaDB has innodb_snapshot_isolation, and leaves the claim to a new transaction.

    A conflict is as right: it comes where the settings say READ COMMITTED, and the transaction has another level.
    """
    try:
        return store.claim(claim)
    except OperationalError as error:
        if not store.may_repeat(error):
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
        in_threads(1, lambda _: store.journal.start_call(claimed, "charge", again=False))
        assert IdempotencyStep.objects.count() == 0
        assert claimed_with_an_old_snapshot(store, claim) in (InDoubt(), Conflicted(), None)


def test_an_old_snapshot_does_not_hide_finished_steps(store: Store, in_threads: Threads) -> None:
    """Nor from work in atomic mode: a plain read would not show them, and the finished call would be made again."""

    def pay(_: int) -> None:
        with suppress(Broken):
            run_once(charge_and_die, scope="s", key="k", operation="pay", lease=60)

    def charge_and_die(operation: Operation) -> None:
        operation.call("charge", lambda: "ch_1")
        raise Broken

    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        assert IdempotencyStep.objects.count() == 0
        in_threads(1, pay)
        assert IdempotencyStep.objects.count() == 0
        atomic = a_claim(scope="s", key="k", operation="pay", fingerprint=None)
        assert claimed_with_an_old_snapshot(store, atomic) in (InDoubt(attempt=1), Conflicted(), None)


def test_a_killed_worker_leaves_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server rolls its transaction back as soon as the connection is gone. Then the next request runs."""
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "tests.settings")
    command = [sys.executable, "-c", WORKER, str(connection.settings_dict["NAME"])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"claimed\n"
        assert attempt(store) == Conflicted()
        worker.kill()
    assert eventually("the key to be free", lambda: isinstance(attempt(store), Claimed))
    assert Order.objects.count() == 0


def test_a_key_that_was_freed_and_is_used_again_locks_the_gaps_beside_it(store: Store, in_threads: Threads) -> None:
    """As long as the deleted row is not purged. A neighbour conflicts: on MySQL after the lock timeout."""

    def neighbour(number: int) -> Any:
        with connection.cursor() as cursor:
            cursor.execute("SET innodb_lock_wait_timeout = 1")
        return attempt(store, key="another")

    with connection.cursor() as cursor:  # Deleted rows of other tests would make the gaps smaller.
        cursor.execute(f"ALTER TABLE {IdempotencyKey._meta.db_table} FORCE")
    reader = connection.copy()
    try:
        with reader.cursor() as cursor:  # It keeps the deleted row. Under READ COMMITTED it would have no snapshot.
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        with transaction.atomic():
            freed = store.claim(a_claim())
            assert isinstance(freed, Claimed)
            store.release(freed)
        with transaction.atomic():
            assert isinstance(store.claim(a_claim()), Claimed)
            assert in_threads(1, neighbour) == [Conflicted()]
    finally:
        reader.close()
    assert isinstance(attempt(store, key="another"), Claimed)


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
