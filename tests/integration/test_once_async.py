"""`arun_once`."""

from __future__ import annotations

import asyncio
from functools import partial
from threading import Event
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connection

from django_idempotency import IdempotencyConfigurationError, Operation, arun_once
from django_idempotency.models import IdempotencyKey, IdempotencyStep
from tests.shopapp.models import Order
from tests.works import RUNS, place

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _clean() -> None:
    RUNS.clear()


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

    def test_leased(self) -> None:
        """With the asynchronous steps."""

        async def charge(*, amount: int) -> int:
            return amount

        async def pay(operation: Operation) -> Any:
            await operation.awrite("order", Order.objects.acreate, reference="awaited")
            await operation.acall("asynchronous", charge, amount=5)
            await operation.acall("plain", partial(dict), amount=6)
            return await operation.acall("charge", self.work)

        answers = [async_to_sync(arun_once)(pay, scope="s", key="k", lease=60, operation="pay") for _ in range(2)]
        assert [answer.replayed for answer in answers] == [False, True]
        assert Order.objects.filter(reference="awaited").count() == 1
        results = dict(IdempotencyStep.objects.values_list("name", "result"))
        assert (results["asynchronous"], results["plain"]) == ('{"value": 5}', '{"value": {"amount": 6}}')

    def test_work_without_a_name_is_named(self) -> None:
        """Itself, and not the function around it."""
        with pytest.raises(IdempotencyConfigurationError, match=r"functools\.partial\(<function place.* has no name"):
            async_to_sync(arun_once)(partial(place), scope="s", key="k")

    def test_a_plain_function_may_return_what_has_to_be_awaited(self) -> None:
        """As managers' asynchronous methods do."""
        answer = async_to_sync(arun_once)(lambda: self.work(), scope="s", key="k", operation="awaited")
        assert answer.value == Order.objects.get().pk

    @pytest.mark.django_db(transaction=True)
    @pytest.mark.parametrize("lease", [None, 60])
    def test_cancelled_during_the_claim_it_runs_nothing(self, lease: Any) -> None:
        """As with a time-out around a `wait`: nobody would see the charge. The key is free for a retry."""

        async def pay(*operation: Operation) -> int:
            return await self.work()

        cancels: list[Any] = []
        told = Event()

        def claim(execute: Any, *statement: Any) -> Any:
            if cancels:
                cancels.pop()()
                assert told.wait(30)
            return execute(*statement)

        async def client() -> None:
            task = asyncio.create_task(arun_once(pay, scope="s", key="k", operation="pay", lease=lease))
            cancels.append(partial(asyncio.get_running_loop().call_soon_threadsafe, task.cancel))
            with pytest.raises(asyncio.CancelledError):
                await task
            told.set()

        with connection.execute_wrapper(claim):
            async_to_sync(client)()
        assert RUNS == []
        assert not IdempotencyKey.objects.exclude(status="failed").exists()
        async_to_sync(arun_once)(pay, scope="s", key="k", operation="pay", lease=lease)
        assert Order.objects.count() == 1
