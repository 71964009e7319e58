"""`arun_once`."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connection

from django_idempotency import (
    Operation,
    PayloadMismatch,
    arun_once,
)
from django_idempotency.models import IdempotencyStep
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

    def test_another_payload_is_a_mismatch(self) -> None:
        async_to_sync(arun_once)(place, scope="s", key="k", payload="a")
        with pytest.raises(PayloadMismatch):
            async_to_sync(arun_once)(place, scope="s", key="k", payload="b")

    def test_a_plain_function_may_return_what_has_to_be_awaited(self) -> None:
        """As managers' asynchronous methods do."""
        answer = async_to_sync(arun_once)(lambda: self.work(), scope="s", key="k", operation="awaited")
        assert answer.value == Order.objects.get().pk
