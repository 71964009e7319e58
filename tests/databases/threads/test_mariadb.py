"""MariaDB: how long a claim waits. MySQL, too: what errors have rolled back. What locks mean is in test_stores.py."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Barrier, Event
from time import sleep
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction

from django_idempotency.engine.protocol.outcomes import Completed
from django_idempotency.engine.stores import Store
from django_idempotency.exceptions import TransactionBroken
from django_idempotency.models import IdempotencyKey
from tests.at_once import CALLERS, once, order, references, without_autocommit
from tests.claims import a_claim, expire
from tests.contracts.test_races import SNAPSHOT, finish, store
from tests.servers import DEADLINE
from tests.sql import ask

__all__ = ["store"]  # a fixture
Threads = Callable[..., list[Any]]
pytestmark = [pytest.mark.only_on("mysql"), pytest.mark.django_db(transaction=True)]
CHANGED, DEADLOCK = 1020, 1213


@contextmanager
def session(**options: Any) -> Iterator[None]:
    """New connections have these OPTIONS."""
    usual = connection.settings_dict["OPTIONS"]
    connection.close()
    connection.settings_dict["OPTIONS"] = {**usual, **options}
    try:
        yield
    finally:
        connection.close()
        connection.settings_dict["OPTIONS"] = usual


class TestTheCallersTransaction:
    """What a caller has written before the claim is gone with some errors. Then only the caller can begin again."""

    def test_a_refusal_is_not_kept_after_it(self) -> None:
        """The second claim would be a new transaction, and the caller would commit the refusal alone."""
        from django_idempotency.engine.conf import resolve
        from django_idempotency.engine.execution.runners import Work
        from django_idempotency.engine.protocol.outcomes import Finished, Verdict
        from django_idempotency.engine.stores import store_for

        class Refusing(Work[None]):
            def run(self, operation: None) -> Any:
                with connection.cursor() as cursor:
                    cursor.execute("ROLLBACK")  # as a deadlock does
                raise OperationalError(DEADLOCK, "Deadlock found when trying to get lock")

            def answer(self, error: Exception) -> Any:
                return Finished(value=None, verdict=Verdict.KEEP, snapshot=SNAPSHOT)

        with without_autocommit():
            order("before")
            with pytest.raises(TransactionBroken, match="What was written before this operation"):
                resolve().runner.run(store_for("default"), a_claim(), Refusing())
        assert not IdempotencyKey.objects.exists()


class TestSnapshotIsolation:
    """REPEATABLE READ with innodb_snapshot_isolation, which is on by default since MariaDB 11.6."""

    @pytest.fixture(autouse=True)
    def _session(self) -> Iterator[None]:
        if ask("SHOW VARIABLES LIKE 'innodb_snapshot_isolation'") is None:
            pytest.skip("this version has no innodb_snapshot_isolation")
        with session(isolation_level="repeatable read", init_command="SET SESSION innodb_snapshot_isolation = ON"):
            yield

    def test_a_waiting_duplicate_gets_the_result(self, in_threads: Threads) -> None:
        """Its snapshot is older than the result, which is error 1020. In a new transaction it replays."""
        started = Event()

        def work() -> int:
            started.set()
            sleep(0.3)  # the duplicate asks several times
            return order("first")

        def run(number: int) -> Any:
            if number == 0:
                return once(work)
            assert started.wait(DEADLINE), "the first never began"
            return once(lambda: order("second"), wait=30)

        first, duplicate = in_threads(2, run)
        assert (duplicate.value, duplicate.replayed) == (first.value, True)
        assert references() == ["first"]

    def test_rivals_for_an_expired_key_that_wait_get_the_result(self, in_threads: Threads) -> None:
        """Most of them lose a deadlock or meet error 1020 on their way, some more than once."""
        once(lambda: order("first"))
        expire()
        barrier = Barrier(10, timeout=DEADLINE)

        def rival(number: int) -> bool:
            barrier.wait()
            return bool(once(lambda: order("second"), wait=30).replayed)

        assert Counter(in_threads(10, rival)) == {False: 1, True: 9}
        assert references() == ["first", "second"]

    @CALLERS
    def test_inside_the_callers_transaction_it_propagates(self, in_threads: Threads, caller: Any) -> None:
        """MariaDB has rolled back what the caller has written before."""
        with caller():
            order("before")
            assert not IdempotencyKey.objects.exists()
            in_threads(1, lambda number: once(lambda: order("rival")))
            with pytest.raises(OperationalError) as error:
                once(lambda: order("second"))
        assert error.value.args[0] == CHANGED
        assert references() == ["rival"]

    def test_a_leased_claim_may_be_repeated(self, store: Store, in_threads: Threads) -> None:
        """The same of a row that another worker has taken over."""
        with transaction.atomic():
            assert not IdempotencyKey.objects.exists()
            in_threads(1, lambda number: finish(store))
            with pytest.raises(OperationalError) as error:
                store.claim(a_claim(lease=60.0))
        assert store.code(error.value) in store.repeatable

    def test_without_it_an_old_snapshot_does_not_hide_the_result(self, store: Store, in_threads: Threads) -> None:
        """A plain read would show the past. Under this level the claim reads what is committed."""
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute("SET SESSION innodb_snapshot_isolation = OFF")
            assert IdempotencyKey.objects.count() == 0
            in_threads(1, lambda number: finish(store))
            assert IdempotencyKey.objects.count() == 0
            assert store.claim(a_claim()) == Completed(snapshot=SNAPSHOT)
