"""The `once` decorator."""

from __future__ import annotations

from typing import Any

import pytest
from asgiref.sync import async_to_sync

from django_idempotency import (
    IdempotencyConfigurationError,
    Operation,
    once,
)
from django_idempotency.models import IdempotencyKey
from tests.shopapp.models import Order
from tests.works import RUNS

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _clean() -> None:
    RUNS.clear()


def handle(event: dict[str, Any]) -> Any:
    """Handles an event."""
    RUNS.append(event["id"])
    return {"order": Order.objects.create(reference=event["id"]).pk}


def handle_leased(event: dict[str, Any], *, operation: Operation, factor: int = 1) -> Any:
    return operation.call("charge", lambda: RUNS.append(factor))


async def handle_async(event: dict[str, Any]) -> Any:
    RUNS.append(event["id"])
    return (await Order.objects.acreate()).pk


async def handle_leased_async(event: dict[str, Any], operation: Operation) -> Any:
    async def charge() -> str:
        RUNS.append("charged")
        return "charged"

    return await operation.acall("charge", charge)


def by_name(*, event: dict[str, Any]) -> Any:
    RUNS.append("by name")
    return event["id"]


class Decorated:
    """Made anew in each test, so that a mutation of the decorator is seen."""

    def __init__(self) -> None:
        self.handle = once(scope="stripe", key=lambda event: event["id"], payload=lambda event: event["data"])(handle)
        self.handle_leased: Any = once(
            scope=lambda event, **_: event["from"], key=lambda event, **_: event["id"], lease=60
        )(handle_leased)
        self.handle_async: Any = once(scope="queue", key=lambda event: event["id"])(handle_async)
        self.handle_leased_async: Any = once(scope="queue", key=lambda event: event["id"], lease=60)(
            handle_leased_async
        )
        self.by_name = once(
            scope=lambda *, event: event["id"], key=lambda *, event: event["id"], payload=lambda *, event: event
        )(by_name)


@pytest.fixture
def decorated() -> Decorated:
    return Decorated()


class TestDecorator:
    def test_it_returns_the_result(self, decorated: Decorated) -> None:
        """As the function would, first time and again; it keeps its name."""
        event = {"id": "evt_1", "data": {"a": 1}}
        assert decorated.handle(event) == decorated.handle(event)
        assert RUNS == ["evt_1"]
        assert (decorated.handle.__name__, decorated.handle.__doc__) == ("handle", "Handles an event.")
        assert IdempotencyKey.objects.get().operation == f"{__name__}.handle"
        assert decorated.by_name(event=event) == decorated.by_name(event=event) == "evt_1"
        assert RUNS == ["evt_1", "by name"]

    def test_leased(self, decorated: Decorated) -> None:
        """The operation comes as a keyword argument."""
        event = {"id": "evt_1", "from": "ci"}
        assert [decorated.handle_leased(event, factor=2) for _ in range(2)] == [None, None]
        assert RUNS == [2]
        assert IdempotencyKey.objects.get().scope == "ci"

    def test_asynchronous(self, decorated: Decorated) -> None:
        """A coroutine function stays one."""
        event = {"id": "evt_1"}
        first = async_to_sync(decorated.handle_async)(event)
        assert first == async_to_sync(decorated.handle_async)(event)
        assert (
            async_to_sync(decorated.handle_leased_async)(event)
            == async_to_sync(decorated.handle_leased_async)(event)
            == "charged"
        )
        assert RUNS == ["evt_1", "charged"]

    def test_a_lambda_is_refused_at_decoration(self) -> None:
        """It has no name that stays."""
        with pytest.raises(IdempotencyConfigurationError, match="has no name that stays the same"):
            once(scope="s", key=str)(lambda: None)
