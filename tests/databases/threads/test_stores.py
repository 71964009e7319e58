"""The stores under contention, on the database at hand: what one transaction's locks mean for the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from threading import Barrier, Event
from typing import Any
from uuid import uuid4

import pytest
from django.db import DatabaseError, connection, transaction

from django_idempotency.engine.protocol.outcomes import Claimed, Completed, Conflicted, Snapshot
from django_idempotency.engine.stores import Store, store_for
from django_idempotency.models import IdempotencyKey
from tests.at_once import TIMEOUTS, impatiently
from tests.claims import a_claim, complete, expire
from tests.contracts.test_races import SNAPSHOT, attempt, finish, isolation, store, way
from tests.sql import ask

__all__ = ["isolation", "store", "way"]  # fixtures
Threads = Callable[..., list[Any]]
pytestmark = pytest.mark.django_db(transaction=True)


ROW_LOCKS = pytest.mark.only_on("postgresql", "mysql")


@contextmanager
def running(store: Store, in_threads: Threads, **changes: Any) -> Iterator[Callable[[Callable[[], Any]], Any]]:
    """Hold a claim in this thread's transaction; gives a function that does something on another connection."""
    with transaction.atomic():
        claimed = store.claim(a_claim(**changes))
        assert isinstance(claimed, Claimed)
        yield lambda work: in_threads(1, lambda number: impatiently(work))[0]
        complete(store, claimed, SNAPSHOT)


def attempt_beside(store: Store, key: str, distance: int) -> Any:
    """A claim of another key whose hash is next to this one's."""
    claim, other = a_claim(key=key), a_claim(key="neighbour")
    beside = replace(other.identity, key_hash=claim.identity.key_hash + distance)
    with transaction.atomic():
        return store.claim(replace(other, identity=beside))


@ROW_LOCKS
class TestWhileAnotherTransactionRunsAKey:
    @pytest.mark.parametrize("expired", [False, True])
    def test_its_duplicates_conflict_and_replay_after_commit(
        self, store: Store, in_threads: Threads, expired: bool
    ) -> None:
        """A new key and one that is being taken over alike; nobody waits for the end."""
        if expired:
            finish(store)
            expire()
        with running(store, in_threads) as elsewhere:
            assert [elsewhere(lambda: attempt(store)) for _ in range(3)] == [Conflicted()] * 3
        assert attempt(store) == Completed(snapshot=SNAPSHOT)

    @pytest.mark.usefixtures("isolation")
    @pytest.mark.parametrize("distance", [-1, 1])
    # MariaDB locks the gap before an expired key under REPEATABLE READ: a key whose hash lies there gets 409.
    @pytest.mark.parametrize(
        ("expired", "isolation"),
        [(False, "read committed"), (True, "read committed"), (False, "repeatable read")],
        indirect=["isolation"],
    )
    def test_its_neighbours_in_the_index_are_claimed(
        self, store: Store, in_threads: Threads, expired: bool, distance: int
    ) -> None:
        """No lock reaches the gap beside the key, in which another key's hash may lie."""
        key = uuid4().hex
        if expired:
            finish(store, key=key)
            expire()
        with running(store, in_threads, key=key) as elsewhere:
            assert isinstance(elsewhere(lambda: attempt_beside(store, key, distance)), Claimed)

    def test_other_expired_keys_are_taken_over(self, store: Store, in_threads: Threads) -> None:
        """A takeover locks its own row, even where the table is so small that any index will do."""
        finish(store)
        finish(store, key="other")
        expire()
        with running(store, in_threads) as elsewhere:
            assert isinstance(elsewhere(lambda: attempt(store, key="other")), Claimed)

    def test_twenty_keys_run_side_by_side(self, store: Store, in_threads: Threads) -> None:
        """All are claimed before the first one ends."""
        barrier = Barrier(20, timeout=60)

        def work(number: int) -> Any:
            with transaction.atomic():
                outcome = store.claim(a_claim(key=f"key{number}"))
                barrier.wait()
                return outcome

        assert Counter(type(outcome) for outcome in in_threads(20, work)) == {Claimed: 20}

    def test_a_purge_passes_over_a_key_that_is_being_taken_over(self, store: Store, in_threads: Threads) -> None:
        """It deletes the other expired key and does not wait."""
        taken = finish(store)
        finish(store, key="other")
        expire()

        def purge() -> int:
            with transaction.atomic():
                return store.purge(10)[0]

        with running(store, in_threads) as elsewhere:
            assert elsewhere(purge) == 1
        assert IdempotencyKey.objects.get().pk == taken

    def test_a_purge_that_has_not_committed_holds_up_no_new_key(self, store: Store, in_threads: Threads) -> None:
        """Its locks lie on what it deletes."""
        for number in range(10):
            finish(store, key=f"old{number}")
        expire()
        with transaction.atomic():
            assert store.purge(10)[0] == 10
            (outcomes,) = in_threads(
                1, lambda _: impatiently(lambda: [attempt(store, key=f"new{number}") for number in range(30)])
            )
        assert Counter(type(outcome) for outcome in outcomes) == {Claimed: 30}


@ROW_LOCKS
@pytest.mark.parametrize("outcome", [Conflicted(), Completed(snapshot=SNAPSHOT)])
def test_a_claim_leaves_the_projects_lock_timeout_alone(store: Store, in_threads: Threads, outcome: Any) -> None:
    """On MySQL and MariaDB under each isolation level. An error in between must not leave another one behind."""
    _, show_timeout, timeout = TIMEOUTS[connection.vendor]

    def duplicate() -> Any:
        return attempt(store), ask(show_timeout)[0]

    if isinstance(outcome, Completed):
        finish(store)
        assert in_threads(1, lambda _: impatiently(duplicate)) == [(outcome, timeout)]
    else:
        with running(store, in_threads) as elsewhere:
            assert elsewhere(duplicate) == (outcome, timeout)


SNAPSHOT = Snapshot(status_code=200, headers=(), body=b"done")


class TestStores:
    @pytest.mark.only_on("postgresql")
    @pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
    def test_stricter_isolation_asks_for_a_fresh_transaction(self, in_threads: Threads, level: str) -> None:
        """The snapshot is older than the winner's commit: the claim fails in a way that may be repeated."""
        store = store_for("default")
        snapshot_taken, committed = Event(), Event()

        def winner() -> Any:
            assert snapshot_taken.wait(30), "the loser never had its snapshot"
            with transaction.atomic():
                claimed = store.claim(a_claim())
                assert isinstance(claimed, Claimed)
                complete(store, claimed, SNAPSHOT)
            committed.set()

        def loser() -> bool:
            try:
                with transaction.atomic(), connection.cursor() as cursor:
                    cursor.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
                    cursor.execute("SELECT 1")
                    snapshot_taken.set()
                    assert committed.wait(30), "the winner never committed"
                    store.claim(a_claim())
            except DatabaseError as error:
                return store.code(error) in store.repeatable
            raise AssertionError("the claim did not notice")

        assert in_threads(2, lambda number: (winner, loser)[number]()) == [None, True]
        assert store.claim(a_claim()) == Completed(snapshot=SNAPSHOT)
