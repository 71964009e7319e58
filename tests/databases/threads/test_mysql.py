"""MySQL: a claim that does not wait. What it shares with other databases is in test_stores.py and test_innodb.py."""

from __future__ import annotations

from collections.abc import Callable
from threading import Barrier
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction

from django_idempotency.engine.protocol.outcomes import Claimed, Completed, Conflicted
from django_idempotency.engine.stores import Store
from django_idempotency.engine.stores.innodb import LOCK_WAIT_TIMEOUT
from django_idempotency.models import IdempotencyKey
from tests.at_once import impatiently
from tests.claims import a_claim, complete, expire
from tests.contracts.test_races import SNAPSHOT, attempt, finish, isolation, store
from tests.sql import ask

__all__ = ["isolation", "store"]  # fixtures
Threads = Callable[..., list[Any]]
pytestmark = [
    pytest.mark.only_on("mysql"),
    pytest.mark.usefixtures("on_mysql"),
    pytest.mark.django_db(transaction=True),
]


def without_a_wait(work: Callable[[], Any]) -> Any:
    """Do something in a session that must not wait for a row. The row's owner lives longer than the wait may last."""

    def refuse(execute: Any, sql: str, *rest: Any) -> Any:
        try:
            return execute(sql, *rest)
        except OperationalError as error:
            if error.args[0] == LOCK_WAIT_TIMEOUT:
                raise AssertionError(f"has waited: {sql}") from error
            raise

    with connection.execute_wrapper(refuse):
        return impatiently(work, seconds=1)


class TestNoStatementWaits:
    def test_for_a_key_in_flight(self, store: Store, in_threads: Threads) -> None:
        """Not even in the shortest wait that MySQL has, which is a second."""
        with transaction.atomic():
            claimed = store.claim(a_claim())
            outcomes = in_threads(3, lambda _: without_a_wait(lambda: attempt(store)))
            assert outcomes == [Conflicted()] * 3
            assert isinstance(claimed, Claimed)
            complete(store, claimed, SNAPSHOT)

    def test_for_an_expired_key(self, store: Store, in_threads: Threads) -> None:
        """Who looks first locks the row alone, and takes it over. In 285 duplicates each, FOR SHARE did the same."""
        finish(store)
        expire()
        barrier = Barrier(10, timeout=30)

        def race(number: int) -> Any:
            with transaction.atomic():
                barrier.wait()
                outcome = store.claim(a_claim())
                barrier.wait()
                return outcome

        outcomes = in_threads(10, lambda number: without_a_wait(lambda: race(number)))
        assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Claimed"] + ["Conflicted"] * 9

    def test_for_a_replay(self, store: Store, in_threads: Threads) -> None:
        """Duplicates of a completed key are answered side by side, though each would lock its row."""
        finish(store)
        barrier = Barrier(10, timeout=30)

        def replay(number: int) -> Any:
            with transaction.atomic():
                outcome = store.claim(a_claim())
                barrier.wait()
                return outcome

        outcomes = in_threads(10, lambda number: without_a_wait(lambda: replay(number)))
        assert outcomes == [Completed(snapshot=SNAPSHOT)] * 10


def test_an_old_snapshot_does_not_hide_the_winners_result(store: Store, in_threads: Threads) -> None:
    """Nothing runs twice: the INSERT meets what is committed. The plain read shows the past, so this is a conflict."""
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        assert IdempotencyKey.objects.count() == 0
        in_threads(1, lambda _: finish(store))
        assert IdempotencyKey.objects.count() == 0
        assert store.claim(a_claim()) == Conflicted()
    assert attempt(store) == Completed(snapshot=SNAPSHOT)


class TestOtherIsolationLevels:
    @pytest.mark.usefixtures("isolation")
    @pytest.mark.parametrize(
        "isolation", ["read uncommitted", "repeatable read", "serializable", None], indirect=["isolation"]
    )
    def test_a_duplicate_conflicts_when_the_server_ends_its_wait_and_replays(
        self, store: Store, in_threads: Threads
    ) -> None:
        """The session keeps its lock timeout: here the wait is that of the project."""

        def duplicate(number: int) -> Any:
            with connection.cursor() as cursor:
                cursor.execute("SET innodb_lock_wait_timeout = 1")
            return attempt(store), ask("SELECT @@innodb_lock_wait_timeout")[0]

        with transaction.atomic():
            claimed = store.claim(a_claim())
            assert in_threads(1, duplicate) == [(Conflicted(), 1)]
            assert isinstance(claimed, Claimed)
            complete(store, claimed, SNAPSHOT)
        assert in_threads(3, duplicate) == [(Completed(snapshot=SNAPSHOT), 1)] * 3

    @pytest.mark.usefixtures("isolation")
    @pytest.mark.parametrize("isolation", ["repeatable read", "serializable"], indirect=True)
    def test_new_keys_run_side_by_side(self, store: Store, in_threads: Threads) -> None:
        """A claim locks no gap, in which the hashes of other new keys may lie."""
        barrier = Barrier(10, timeout=30)

        def work(number: int) -> Any:
            with transaction.atomic():
                outcome = store.claim(a_claim(key=f"key{number}"))
                barrier.wait()
                return outcome

        assert [type(outcome) for outcome in in_threads(10, work)] == [Claimed] * 10

    @pytest.mark.usefixtures("isolation")
    @pytest.mark.parametrize("isolation", ["read uncommitted"], indirect=True)
    def test_a_result_that_is_not_committed_is_not_replayed(self, store: Store, in_threads: Threads) -> None:
        """A dirty read would show it."""
        finish(store)
        expire()
        with transaction.atomic():
            claimed = store.claim(a_claim())
            assert isinstance(claimed, Claimed)
            complete(store, claimed, SNAPSHOT)
            assert in_threads(1, lambda _: attempt(store)) == [Conflicted()]

    @pytest.mark.usefixtures("isolation")
    @pytest.mark.parametrize("expired", [False, True])
    @pytest.mark.parametrize(
        "isolation", ["read uncommitted", "repeatable read", "serializable"], indirect=["isolation"]
    )
    def test_at_most_one_of_ten_wins(self, store: Store, in_threads: Threads, expired: bool) -> None:
        """Under SERIALIZABLE rivals for an expired key may all be turned away. The next request gets it."""
        if expired:
            finish(store)
            expire()
        barrier = Barrier(10, timeout=60)

        def race(number: int) -> Any:
            barrier.wait()
            return attempt(store)

        outcomes = [*in_threads(10, race), attempt(store)]
        assert sum(isinstance(outcome, Claimed) for outcome in outcomes) == 1
        assert attempt(store) == Completed(snapshot=SNAPSHOT)


class TestSettingsOfTheServer:
    def test_sql_mode_without_strictness(self, store: Store) -> None:
        """The missing key_hash of a duplicate stays an error, and does not become a zero."""
        finish(store)
        with connection.cursor() as cursor:
            cursor.execute("SET SESSION sql_mode = ''")
        try:
            assert attempt(store) == Completed(snapshot=SNAPSHOT)
        finally:
            connection.close()
        assert IdempotencyKey.objects.count() == 1
