"""The steps of a leased view that runs without a key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import async_to_sync

from django_idempotency import IdempotencyConfigurationError
from django_idempotency.engine.execution.operation import Operation
from django_idempotency.models import IdempotencyKey
from tests.integration.leased_urls import GATEWAY, HOOKS
from tests.shopapp.models import Order

Post = Callable[..., Any]
pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.integration.leased_urls")]


@pytest.fixture(autouse=True)
def _clean() -> None:
    GATEWAY.reset()
    HOOKS.clear()


def test_without_a_key_the_steps_just_run(client: Any) -> None:
    """required=False: each request charges, with a derived key of its own."""
    answers = [client.post("/pay/optional", {}, content_type="application/json") for _ in range(2)]
    assert [a.status_code for a in answers] == [201, 201]
    assert "Idempotency-Replayed" not in answers[0].headers
    assert (len(set(GATEWAY.charges)), Order.objects.count(), IdempotencyKey.objects.count()) == (2, 2, 0)


def test_without_a_key_coroutine_functions_need_the_twin_as_well() -> None:
    """The same view must work with a key."""

    async def charge(*, amount: int = 0) -> int:
        return amount

    operation = Operation(None, steps_on="default")
    with pytest.raises(IdempotencyConfigurationError, match=r"'one'.*charge.*operation\.acall\('one'"):
        operation.call("one", charge)
    with pytest.raises(IdempotencyConfigurationError, match=r"'two'.*charge.*operation\.awrite\('two'"):
        operation.write("two", charge)
    with pytest.raises(IdempotencyConfigurationError, match=r"'rate'.*charge.*operation\.afetch\('rate'"):
        operation.fetch("rate", charge)
    assert async_to_sync(operation.acall)("three", charge, amount=5) == 5


@pytest.mark.parametrize("step", ["acall", "afetch"])
def test_without_a_key_a_function_leaves_the_event_loop_as_well(step: str) -> None:
    """It may ask the database, or block. A function that returns an awaitable is awaited."""
    operation = Operation(None, steps_on="default")

    async def later() -> str:
        return "awaited"

    async def steps() -> tuple[Any, Any]:
        run: Any = getattr(operation, step)
        return await run("order", Order.objects.create, reference="unkeyed"), await run("later", lambda: later())

    order, awaited = async_to_sync(steps)()
    assert (Order.objects.get(), order.reference, awaited) == (order, "unkeyed", "awaited")
