"""MariaDB: how long a claim waits. MySQL, too: what errors have rolled back. What locks mean is in test_stores.py."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Barrier, Event
from time import monotonic
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction
from django.db.models import F

from django_idempotency.engine.protocol.outcomes import Claimed, Completed, Conflicted
from django_idempotency.engine.stores import Store
from django_idempotency.exceptions import TransactionBroken
from django_idempotency.models import IdempotencyKey
from tests.claims import a_claim, expire, steady_clock
from tests.concurrency.callers import CALLERS, once, order, references, without_autocommit
from tests.contracts.races import SNAPSHOT, attempt, finish, store
from tests.servers import DEADLINE, eventually
from tests.shopapp.models import Order
from tests.sql import ask

__all__ = ["store"]  # a fixture
Threads = Callable[..., list[Any]]
pytestmark = [pytest.mark.only_on("mysql"), pytest.mark.django_db(transaction=True)]
CHANGED, DEADLOCK = 1020, 1213
WAITING = (
    # The second statement rests first: InnoDB refreshes that table only after 0.1 seconds without a look.
    "SELECT (SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT') "
    "FROM (SELECT SLEEP(0.2)) AS rest"
)


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


@pytest.mark.usefixtures("on_mariadb")
class TestWait:
    def claim_beside(self, in_threads: Threads, store: Store, expired: bool, **changes: Any) -> tuple[Any, list[Any]]:
        """The outcome of a claim while another transaction runs the key, and how its statements limit their waits."""
        if expired:
            finish(store)
            expire()
        limits: list[Any] = []

        def note(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
            if limit := re.match("SET STATEMENT (.*?) FOR ", sql):
                limits.append((limit[1], params[: limit[1].count("%s")]))
            return execute(sql, params, many, context)

        def claim(number: int) -> Any:
            with connection.execute_wrapper(note):
                return attempt(store, **changes)

        with transaction.atomic():
            assert isinstance(store.claim(a_claim()), Claimed)
            return in_threads(1, claim)[0], limits

    @pytest.mark.parametrize("expired", [False, True])
    def test_a_part_of_a_second_is_not_rounded_up(self, store: Store, in_threads: Threads, expired: bool) -> None:
        """A lock wait timeout has whole seconds, a statement's time has microseconds."""
        with steady_clock():
            outcome, limits = self.claim_beside(in_threads, store, expired, wait=0.9)
        assert outcome == Conflicted()
        (first, (seconds, longer)), *others = limits
        assert first == "max_statement_time = %s, innodb_lock_wait_timeout = %s"
        assert seconds == pytest.approx(0.899)
        assert longer == 2
        # The INSERT finds an expired key and does not wait. The reading has what the INSERT has left.
        assert [limit for limit, _ in others] == [first] * expired
        assert all(left < seconds for _, (left, _) in others)

    def test_where_it_is_over_no_statement_waits(self, store: Store, in_threads: Threads) -> None:
        """Such as the statements of a claim that is repeated after a deadlock."""
        outcome, limits = self.claim_beside(in_threads, store, True, wait=30, deadline=monotonic() - 1)
        assert outcome == Conflicted()
        assert limits == [("innodb_lock_wait_timeout = 0", [])] * 2

    def test_a_century_is_as_good_as_a_year(self, store: Store) -> None:
        """The server takes no longer limit."""
        assert isinstance(attempt(store, wait=100 * 365 * 86400), Claimed)

    def test_no_wait_is_so_short_that_the_server_takes_it_for_no_limit(self, store: Store, in_threads: Threads) -> None:
        """Its 0 means that."""
        outcome, limits = self.claim_beside(in_threads, store, False, wait=1e-9, deadline=None)
        assert outcome == Conflicted()
        assert limits in (
            [("max_statement_time = %s, innodb_lock_wait_timeout = %s", [0.001, 2])],
            [("innodb_lock_wait_timeout = 0", [])],  # the time was over before the statement
        )


class TestTheCallersTransaction:
    """What a caller has written before the claim is gone with some errors. Then only the caller can begin again."""

    @CALLERS
    def test_a_deadlock_of_the_claim_is_not_repeated(self, in_threads: Threads, caller: Any) -> None:
        """The rest would commit without what came before."""
        stock = Order.objects.create(reference="stock")
        caller_has_stock, rival_has_key = Event(), Event()

        def run(number: int) -> Any:
            return rival() if number else calling()

        def calling() -> Any:
            with caller():
                Order.objects.filter(pk=stock.pk).update(amount=1)
                caller_has_stock.set()
                assert rival_has_key.wait(DEADLINE)
                try:
                    return once(lambda: order("second"), wait=30)
                except OperationalError as error:
                    return error.args[0]

        def rival() -> None:
            def work() -> None:
                # InnoDB rolls back the transaction that has changed fewer rows.
                Order.objects.bulk_create([Order(reference="rival") for _ in range(100)])
                rival_has_key.set()
                assert caller_has_stock.wait(DEADLINE)
                eventually("the caller to wait for the key", lambda: ask(WAITING)[0])
                Order.objects.filter(pk=stock.pk).update(amount=F("amount") + 10)
                raise ZeroDivisionError

            with pytest.raises(ZeroDivisionError):
                once(work)

        assert in_threads(2, run)[0] == DEADLOCK
        assert references() == ["stock"]

    def test_a_refusal_is_not_kept_after_it(self) -> None:
        """The second claim would be a new transaction, and the caller would commit the refusal alone."""
        from django_idempotency.engine.execution.execute import execute

        from django_idempotency.engine.protocol.outcomes import Finished, Verdict
        from django_idempotency.engine.stores import store_for

        class Refusing:
            def run(self, operation: None) -> Any:
                with connection.cursor() as cursor:
                    cursor.execute("ROLLBACK")  # as a deadlock does
                raise OperationalError(DEADLOCK, "Deadlock found when trying to get lock")

            def answer(self, error: Exception) -> Any:
                return Finished(value=None, verdict=Verdict.KEEP, snapshot=SNAPSHOT)

        with without_autocommit():
            order("before")
            with pytest.raises(TransactionBroken, match="What was written before this operation"):
                execute(store_for("default"), a_claim(), Refusing())  # type: ignore[arg-type]
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
            eventually("the duplicate to wait", lambda: ask(WAITING)[0])
            return order("first")

        def run(number: int) -> Any:
            if number == 0:
                return once(work)
            assert started.wait(DEADLINE)
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
        assert store.may_repeat(error.value)

    def test_without_it_an_old_snapshot_does_not_hide_the_result(self, store: Store, in_threads: Threads) -> None:
        """A plain read would show the past; the claim reads what is committed."""
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute("SET SESSION innodb_snapshot_isolation = OFF")
            assert IdempotencyKey.objects.count() == 0
            in_threads(1, lambda number: finish(store))
            assert IdempotencyKey.objects.count() == 0
            assert store.claim(a_claim()) == Completed(snapshot=SNAPSHOT)
