"""Leased `async def` views, in this process and on uvicorn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from itertools import combinations_with_replacement, product
from threading import Event
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connection
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.test import AsyncClient
from django.urls import path

from django_idempotency import (
    LeaseLost,
    Operation,
    ResultLost,
    ResultNotStorable,
    arun_once,
    get_operation,
    idempotent,
)
from django_idempotency.models import IdempotencyKey, IdempotencyStep
from tests.leases import Broken
from tests.servers import DEADLINE
from tests.shopapp.models import Order
from tests.step_rows import miscounted

CALLS: list[str] = []
HOOKS: dict[str, Callable[..., Any]] = {}


async def charge(key: str) -> dict[str, Any]:
    CALLS.append(key)
    await asyncio.sleep(0)
    return {"charge": key, "loop": on_the_loop()}


def on_the_loop() -> bool:
    try:
        return asyncio.get_running_loop().is_running()
    except RuntimeError:
        return False


def charge_in_a_thread(key: str) -> dict[str, Any]:
    CALLS.append(key)
    return {"charge": key, "loop": on_the_loop(), "atomic": connection.in_atomic_block}


async def order(reference: str) -> Order:
    return await Order.objects.acreate(reference=reference)


async def charge_and_order(request: HttpRequest) -> HttpResponse:
    operation = get_operation(request)
    charged = await operation.acall("charge", HOOKS.get("charge", charge), operation.derive_key("charge"))
    await operation.arenew()
    placed = await operation.awrite("order", HOOKS.get("order", order), charged["charge"])
    return JsonResponse({"order": placed.pk, **charged, "attempt": operation.attempt}, status=201)


protected = idempotent(lease=60)(charge_and_order)
briefly = idempotent(lease=1)(charge_and_order)


async def ask(operation: Any) -> HttpResponse:
    assert get_operation(operation.request) is operation
    await asyncio.sleep(0)
    return HttpResponse("charged: " + str(operation.in_doubt))


@idempotent(operation="POST reconciled", lease=60, reconcile=ask)
async def reconciled(request: HttpRequest) -> HttpResponse:
    await get_operation(request).acall("charge", fail)
    raise AssertionError("unreachable")


async def fail(*args: Any) -> None:
    raise ValueError("the gateway hung up")


@idempotent(lease=60)
async def thrice(request: HttpRequest) -> HttpResponse:
    """Three calls at once, which end as the test says."""
    operation = get_operation(request)
    names = ("first", "second", "third")
    ends = HOOKS["ends"]()
    calls = [operation.acall(name, end, operation.derive_key(name)) for name, end in zip(names, ends, strict=True)]
    for ended in await asyncio.gather(*calls, return_exceptions=HOOKS["waits"]()):
        if isinstance(ended, Exception):
            raise ended
    return HttpResponse("charged thrice")


async def loses(key: str) -> object:
    CALLS.append(key)
    await asyncio.sleep(0)
    return object()


urlpatterns = [
    path("pay", protected),
    path("thrice", thrice),
    path("briefly", briefly),
    path("reconciled", reconciled),
]
pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.steps.threads.test_leased_async")]


@pytest.fixture(autouse=True)
def _clean() -> None:
    CALLS.clear()
    HOOKS.clear()


def send(key: str | None, path: str = "/pay") -> Any:
    headers = {"Idempotency-Key": key} if key else {}
    return async_to_sync(AsyncClient().post)(path, headers=headers)


@pytest.mark.parametrize("function", [charge, charge_in_a_thread])
def test_steps_of_either_kind(key: str, function: Any) -> None:
    """A coroutine function is called on the event loop; both run once and with no transaction of ours around."""
    HOOKS["charge"] = function
    first, second = send(key), send(key)
    assert (first.status_code, second.content) == (201, first.content)
    assert [r.headers["Idempotency-Replayed"] for r in (first, second)] == ["false", "true"]
    assert (len(CALLS), Order.objects.count()) == (1, 1)
    assert first.json()["loop"] is (function is charge)
    assert set(IdempotencyStep.objects.exclude(finished_at=None).values_list("name", flat=True)) == {"charge", "order"}


def test_a_write_and_its_step_are_one_transaction(key: str) -> None:
    """What the coroutine has written is rolled back with its exception."""

    async def half(reference: str) -> None:
        await Order.objects.acreate()
        raise ValueError("half")

    HOOKS["order"] = half
    with pytest.raises(ValueError, match="half"):
        send(key)
    assert (Order.objects.count(), IdempotencyStep.objects.count()) == (0, 1)
    HOOKS.clear()
    assert send(key).json()["attempt"] == 2
    assert (len(CALLS), Order.objects.count()) == (1, 1)


@pytest.mark.parametrize("waits", [True, False], ids=["waits for all", "leaves at the first error"])
def test_the_row_counts_what_three_calls_at_once_come_to(waits: bool) -> None:
    """Their starts and results interleave, and a retry makes again what failed. A lost value is an effect.

    If all are waited for, it is all the same which of the three ends in which way.
    """
    ways = (charge, fail, loses)
    for number, ends in enumerate(combinations_with_replacement(ways, 3) if waits else product(ways, repeat=3)):
        HOOKS.update(ends=lambda ends=ends: ends, waits=lambda: waits)
        key = f"thrice-{number}"
        made = len(CALLS)
        with suppress(ValueError, ResultNotStorable, LeaseLost):
            assert send(key, "/thrice").status_code == 200
        row = IdempotencyKey.objects.get(key=key)
        if waits:
            assert (row.unknown, row.effects) == (ends.count(fail), 3 - ends.count(fail))
        assert miscounted() == {}
        HOOKS.update(ends=lambda: (charge,) * 3, waits=lambda: True)
        with suppress(ResultLost):
            assert send(key, "/thrice").status_code == 200
        row.refresh_from_db()
        assert (row.unknown, row.effects) == (0, 3)
        assert row.status == ("failed" if loses in ends else "completed")
        assert len({*CALLS[made:]}) == 3
    assert miscounted() == {}


def test_a_failed_call_is_in_doubt_and_can_be_reconciled(key: str) -> None:
    """By a coroutine function, too."""
    with pytest.raises(ValueError, match="the gateway hung up"):
        send(key, "/reconciled")
    assert IdempotencyStep.objects.get().error == f"ValueError: line 85 of {__name__}.fail"
    assert send(key, "/reconciled").content == b"charged: ('charge',)"


def cancel_in_the_call(key: str, path: str = "/pay", *, twice: bool) -> None:
    """Cancel the request while its call is under way. Unless it is cancelled a second time, the call is answered."""

    async def run() -> None:
        arrived, answer = asyncio.Event(), asyncio.Event()

        async def hang(key: str) -> dict[str, Any]:
            CALLS.append(key)
            arrived.set()
            await answer.wait()
            return {"charge": key}

        HOOKS["charge"] = hang
        task = asyncio.create_task(AsyncClient().post(path, headers={"Idempotency-Key": key}))
        await arrived.wait()
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
        if twice:
            task.cancel()
        else:
            for _ in range(50):  # the cancellation arrives at the call, which may go on for the length of the lease
                await asyncio.sleep(0)
            answer.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    async_to_sync(run)()
    row = IdempotencyKey.objects.get()
    assert (row.status, row.locked_until) == ("failed", None)
    assert str(row.last_error).startswith("asyncio.exceptions.CancelledError: line ")


def test_a_cancelled_request_finishes_its_call(key: str) -> None:
    """A client that hangs up makes no doubt: the result is kept, the key is failed, and the retry goes on behind it."""
    cancel_in_the_call(key, twice=False)
    step = IdempotencyStep.objects.get()
    assert (step.finished_at is None, step.error) == (False, None)
    HOOKS.clear()
    assert send(key).json()["attempt"] == 2
    assert len(CALLS) == 1


def test_a_request_that_is_cancelled_twice_releases_the_key(key: str) -> None:
    """At the end of the lease, with the call in doubt. Django's threads do not pass the second cancellation on."""
    cancel_in_the_call(key, "/briefly", twice=True)
    assert IdempotencyStep.objects.get().finished_at is None
    HOOKS.clear()
    assert send(key, "/briefly").json()["attempt"] == 2
    assert len(CALLS) == 2


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("step", "attempt"), [("acall", 1), ("acall", 2), ("awrite", 1)])
def test_a_time_limit_around_a_step_hides_nothing(step: str, attempt: int) -> None:
    """The step ends and is stored all the same, now or in an earlier attempt. The work, which has not got its result,
    completes no key: a charge would be seen by nobody. The retry goes on behind it."""
    done: list[str] = []
    attempts: list[int] = []

    async def work(operation: Operation) -> str:
        attempts.append(operation.attempt)
        loop, task, given_up = asyncio.get_running_loop(), asyncio.current_task(), Event()
        assert task is not None
        late = len(attempts) == attempt

        def takes_long() -> str:
            if late:
                loop.call_soon_threadsafe(task.cancel)
                assert step == "acall" or given_up.wait(DEADLINE), "the cancelled claim was never given up"
            done.append("done")
            return "the result"

        if late and attempt == 2:
            loop.call_soon(task.cancel)
        try:
            result: str = await getattr(operation, step)("step", takes_long)
        except asyncio.CancelledError:
            task.uncancel()
            given_up.set()
            return "time is up"
        if len(attempts) < attempt:
            raise Broken
        return result

    def once() -> Any:
        return async_to_sync(arun_once)(work, scope="s", key="k", operation="o", lease=60).value

    if attempt == 2:
        with pytest.raises(Broken):
            once()
    assert once() == "time is up"
    assert IdempotencyKey.objects.get().status == "failed"
    assert (once(), done) == ("the result", ["done"])
    assert IdempotencyKey.objects.get().status == "completed"
