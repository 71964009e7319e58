"""PostgreSQL's advisory locks under contention, and a promise that MariaDB's row locks keep as well."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from threading import Barrier, Event
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction
from django.db.models import F

from django_idempotency.engine.protocol.outcomes import Claimed, Completed, Conflicted, Snapshot
from django_idempotency.engine.stores import store_for
from django_idempotency.models import IdempotencyKey
from tests.claims import a_claim, granted
from tests.concurrency.callers import impatiently
from tests.ways import WAYS, going

pytestmark = pytest.mark.django_db(transaction=True)
Threads = Callable[..., list[Any]]
SNAPSHOT = Snapshot(status_code=200, headers=(), body=b"done")


@pytest.fixture(params=WAYS if connection.vendor == "postgresql" else WAYS[:1], autouse=True)
def way(request: pytest.FixtureRequest) -> Iterator[None]:
    """On PostgreSQL these races run twice: by prepared statements, and by text."""
    with going(request.param):
        yield


class TestStores:
    def race(self, in_threads: Threads, count: int, **changes: Any) -> list[Any]:
        """Claim at once. No transaction ends before all have their outcome.

        On MySQL a duplicate may come between the two halves of the winner's INSERT. The lock timeout ends its wait:
        without the timeout, it would wait for the barrier, at which the winner waits for it.
        """
        barrier = Barrier(count, timeout=60)
        store = store_for("default")

        def claim(number: int) -> Any:
            barrier.wait()
            with transaction.atomic():
                outcome = store.claim(a_claim(**changes))
                barrier.wait()
                if isinstance(outcome, Claimed):
                    store.complete(outcome, SNAPSHOT)
            return outcome

        return in_threads(count, lambda number: impatiently(lambda: claim(number), seconds=1))

    @pytest.mark.only_on("postgresql", "mysql")
    def test_one_of_many_wins_and_nobody_waits_for_its_end(self, in_threads: Threads) -> None:
        """All losers know while the winner is still at work."""
        outcomes = self.race(in_threads, 20)
        assert Counter(type(o) for o in outcomes) == {Claimed: 1, Conflicted: 19}
        assert store_for("default").claim(a_claim()) == Completed(snapshot=SNAPSHOT)

    @pytest.mark.only_on("postgresql")
    def test_one_of_many_takes_an_expired_key_over(self, in_threads: Threads) -> None:
        """Exactly one, at attempt 2."""
        store = store_for("default")
        with transaction.atomic():
            claimed = store.claim(a_claim())
            assert isinstance(claimed, Claimed)
            store.complete(claimed, SNAPSHOT)
        IdempotencyKey.objects.update(expires_at=F("expires_at") - timedelta(days=2))
        outcomes = self.race(in_threads, 20)
        assert [o for o in outcomes if isinstance(o, Claimed)] == [granted(claimed.id, 2)]
        assert Counter(type(o) for o in outcomes)[Conflicted] == 19

    @pytest.mark.only_on("postgresql")
    @pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
    def test_stricter_isolation_asks_for_a_fresh_transaction(self, in_threads: Threads, level: str) -> None:
        """The snapshot is older than the winner's commit: the claim fails in a way that may be repeated."""
        store = store_for("default")
        snapshot_taken, committed = Event(), Event()

        def winner() -> Any:
            assert snapshot_taken.wait(30)
            with transaction.atomic():
                claimed = store.claim(a_claim())
                assert isinstance(claimed, Claimed)
                store.complete(claimed, SNAPSHOT)
            committed.set()

        def loser() -> bool:
            try:
                with transaction.atomic(), connection.cursor() as cursor:
                    cursor.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
                    cursor.execute("SELECT 1")
                    snapshot_taken.set()
                    assert committed.wait(30)
                    store.claim(a_claim())
            except DatabaseError as error:
                return store.may_repeat(error)
            raise AssertionError("the claim did not notice")

        assert in_threads(2, lambda number: (winner, loser)[number]()) == [None, True]
        assert store.claim(a_claim()) == Completed(snapshot=SNAPSHOT)
