"""A task that outlives its work writes nothing: the transaction has ended, and a retry may write again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.http import HttpRequest, HttpResponse
from django.test import AsyncRequestFactory, RequestFactory

from django_idempotency import Operation, arun_once, idempotent
from tests.leases import Broken
from tests.shopapp.models import Order

pytestmark = pytest.mark.django_db(transaction=True)
Work = Callable[[], Awaitable[Any]]


async def in_a_view(work: Work) -> None:
    async def create_order(request: HttpRequest) -> HttpResponse:
        await work()
        return HttpResponse(status=201)

    await idempotent(create_order)(AsyncRequestFactory().post("/", headers={"Idempotency-Key": "k"}))


async def in_a_function(work: Work) -> None:
    await arun_once(work, scope="s", key="k", operation="order")


async def in_a_step(work: Work) -> None:
    async def pay(operation: Operation) -> None:
        await operation.awrite("order", work)

    await arun_once(pay, scope="s", key="k", operation="pay", lease=60)


async def in_a_synchronous_view(work: Work) -> None:
    def create_order(request: HttpRequest) -> HttpResponse:
        async_to_sync(work)()
        return HttpResponse(status=201)

    await sync_to_async(idempotent(create_order))(RequestFactory().post("/", headers={"Idempotency-Key": "k"}))


async def in_a_synchronous_step(work: Work) -> None:
    def pay(operation: Operation) -> None:
        operation.write("order", async_to_sync(work))

    await arun_once(pay, scope="s", key="k", operation="pay", lease=60)


@pytest.mark.parametrize("run", [in_a_view, in_a_function, in_a_step, in_a_synchronous_view, in_a_synchronous_step])
def test_a_task_left_behind_by_gather_does_not_write(run: Callable[[Work], Awaitable[None]]) -> None:
    """`gather` raises the first error at once, and the others go on. Above us is a bridge of the same connection: under
    WSGI Django's own, in a command the project's."""

    async def fails() -> None:
        raise Broken

    async def client() -> list[Any]:
        ended, left_behind = asyncio.Event(), []

        async def places() -> None:
            left_behind.append(asyncio.current_task())
            assert not await Order.objects.aexists()  # inside the transaction
            await ended.wait()
            await Order.objects.acreate()

        async def work() -> None:
            await asyncio.gather(places(), fails())

        with pytest.raises(Broken):
            await run(work)
        ended.set()
        return await asyncio.gather(*left_behind, return_exceptions=True)

    (error,) = async_to_sync(client)()
    assert isinstance(error, RuntimeError)
    assert not Order.objects.exists()


def test_a_task_beside_the_work_is_not_in_its_transaction() -> None:
    """It waits for the thread, and its row stays when the work is rolled back."""

    async def client() -> None:
        begun = asyncio.Event()

        async def fails() -> None:
            begun.set()
            await asyncio.sleep(0)  # the other task asks for the thread
            raise Broken

        async def beside() -> None:
            await begun.wait()
            await Order.objects.acreate()

        work = arun_once(fails, scope="s", key="k", operation="order")
        failed, _ = await asyncio.gather(work, beside(), return_exceptions=True)
        assert isinstance(failed, Broken)

    async_to_sync(client)()
    assert Order.objects.count() == 1
