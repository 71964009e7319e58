"""`run_once` in leased mode."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from functools import partial
from threading import Event
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import DatabaseError, OperationalError, connection

from django_idempotency import (
    IdempotencyConfigurationError,
    Operation,
    OperationInProgress,
    Result,
    arun_once,
    once,
    run_once,
)
from django_idempotency.engine.stores import store_for
from django_idempotency.models import IdempotencyKey
from tests.shopapp.models import Order
from tests.works import RUNS, breaks, charge_and_place, place

pytestmark = pytest.mark.django_db


class TestLeased:
    def test_a_conflict_says_when_to_come_back(self) -> None:
        """60 seconds at most, also for a lease of an hour. The error keeps that through pickle, as Celery sends it."""

        def meet(operation: Operation) -> None:
            with pytest.raises(OperationInProgress) as raised:
                run_once(charge_and_place, scope="s", key="k", lease=3600, operation="meet")
            assert raised.value.retry_after == pickle.loads(pickle.dumps(raised.value)).retry_after == 60

        run_once(meet, scope="s", key="k", lease=3600, operation="meet")

    def test_reconcile_returns_a_result(self) -> None:
        """Or None to run again; anything else is refused."""
        work: Callable[..., Any] = lambda operation: operation.call("charge", breaks, operation.derive_key("charge"))  # noqa: E731
        options: dict[str, Any] = {"scope": "s", "key": "k", "lease": 60, "operation": "pay"}
        with pytest.raises(ValueError, match="it broke"):
            run_once(work, **options)
        with pytest.raises(
            IdempotencyConfigurationError, match=r"reconcile=<function .* returned 'charged'; return Res"
        ):
            run_once(work, reconcile=lambda operation: "charged", **options)
        with pytest.raises(ValueError, match="it broke"):
            run_once(work, reconcile=lambda operation: None, **options)
        found = run_once(work, reconcile=lambda operation: Result(operation.in_doubt, replayed=False), **options)
        assert found == Result(["charge"], replayed=False)
        assert run_once(work, **options) == Result(["charge"], replayed=True)


@pytest.mark.only_on("postgresql")
class TestALeasedClaimThatFails:
    """A transaction that the database asks to repeat has done nothing yet: it is repeated once."""

    @pytest.fixture
    def failing(self, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
        """Let the next claims fail with real errors of the database."""
        store = store_for("default")
        claim, left = store.claim, []

        def claim_or_fail(request: Any, **how: Any) -> Any:
            if left:
                with connection.cursor() as cursor:
                    cursor.execute(f"DO $$ BEGIN RAISE SQLSTATE '{left.pop()}'; END $$")
            return claim(request, **how)

        monkeypatch.setattr(store, "claim", claim_or_fail)
        return lambda *states: left.extend(states)

    @staticmethod
    def run() -> int:
        return run_once(lambda operation: operation.attempt, scope="s", key="k", operation="o", lease=60).value

    @pytest.mark.parametrize("state", ["40001", "40P01"])
    def test_once_it_is_repeated(self, failing: Callable[..., None], state: str) -> None:
        """The caller does not hear of it."""
        failing(state)
        assert self.run() == 1

    def test_twice_it_is_a_conflict(self, failing: Callable[..., None]) -> None:
        """Somebody else is at this key all the time."""
        failing("40001", "40P01")
        with pytest.raises(OperationInProgress):
            self.run()
        assert self.run() == 1

    def test_any_other_error_propagates(self, failing: Callable[..., None]) -> None:
        """And is not repeated."""
        failing("53100")
        with pytest.raises(DatabaseError):
            self.run()
        assert self.run() == 1


# --- `arun_once`


class TestAsynchronous:
    async def work(self) -> int:
        RUNS.append(connection.in_atomic_block)
        return (await Order.objects.acreate()).pk

    def test_coroutine_functions_and_plain_ones(self) -> None:
        """In the transaction, once."""

        async def twice() -> list[Any]:
            kinds = [(self.work, "async"), (place, "plain")]
            return [await arun_once(work, scope="s", key=key) for work, key in kinds for _ in range(2)]

        answers = async_to_sync(twice)()
        assert [answer.replayed for answer in answers] == [False, True, False, True]
        assert answers[0].value == answers[1].value
        assert Order.objects.count() == 2

    def test_a_plain_function_may_return_what_has_to_be_awaited(self) -> None:
        """As managers' asynchronous methods do."""
        answer = async_to_sync(arun_once)(lambda: self.work(), scope="s", key="k", operation="awaited")
        assert answer.value == Order.objects.get().pk

    @pytest.mark.django_db(transaction=True)
    @pytest.mark.parametrize("lease", [None, 60])
    def test_cancelled_during_the_claim_it_runs_nothing(self, lease: Any) -> None:
        """Such as by a time-out around a `wait`. A charge would stay unseen, so none is made. A retry may run."""

        async def works(*operation: Operation) -> int:
            return await self.work()

        cancels: list[Any] = []
        told = Event()

        def claim(execute: Any, *statement: Any) -> Any:
            if cancels:
                cancels.pop()()
                assert told.wait(30), "the cancellation never arrived"
            return execute(*statement)

        async def client() -> None:
            task = asyncio.create_task(arun_once(works, scope="s", key="k", operation="pay", lease=lease))
            cancels.append(partial(asyncio.get_running_loop().call_soon_threadsafe, task.cancel))
            with pytest.raises(asyncio.CancelledError):
                await task
            told.set()

        with connection.execute_wrapper(claim):
            async_to_sync(client)()
        assert RUNS == []
        assert not IdempotencyKey.objects.exclude(status="failed").exists()
        async_to_sync(arun_once)(works, scope="s", key="k", operation="pay", lease=lease)
        assert Order.objects.count() == 1


def charged(operation: Operation) -> int:
    return operation.call("charge", lambda: 1)


def test_a_ttl_that_gateways_outlive_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """By the first call of `run_once`, and where `once` is written: one payment could buy two orders."""
    for key in "abc":
        run_once(charged, scope="s", key=key, lease=60, ttl=3600, operation="short")
        run_once(charged, scope="s", key=key, lease=60, operation="default")
    (called,) = caplog.messages
    assert called.startswith("short: ttl=3600 with a lease.")
    assert called.endswith("Leave ttl out, which means 35 days.")
    once(scope="s", key=str, lease=60, ttl=3601)(charged)
    once(scope="s", key=str, lease=60)(charged)
    once(scope="s", key=str, ttl=3601)(charged)
    assert caplog.messages[1:] == [called.replace("short: ttl=3600", f"{__name__}.charged: ttl=3601")]


@pytest.mark.django_db(transaction=True)
def test_a_result_whose_commit_is_not_confirmed_is_stored_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is stored again on a new connection, where it is found: the work goes on, and the charge isn't repeated."""
    charges: list[str] = []
    unconfirmed: list[bool] = []
    commit = connection.commit

    def commit_and_lose_the_answer() -> None:
        commit()
        if unconfirmed:
            unconfirmed.clear()
            raise OperationalError("the connection was lost")

    def charge() -> str:
        charges.append("ch_1")
        unconfirmed.append(True)
        return "ch_1"

    monkeypatch.setattr(connection, "commit", commit_and_lose_the_answer)
    for replayed in (False, True):
        paid = run_once(lambda operation: operation.call("charge", charge), scope="s", key="k", operation="o", lease=60)
        assert (paid.value, paid.replayed, charges) == ("ch_1", replayed, ["ch_1"])
