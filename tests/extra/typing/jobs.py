"""Work without HTTP: results and signatures are kept."""

from datetime import timedelta
from typing import Any, assert_type

from django_idempotency import Operation, Result, arun_once, once, run_once


def place_order() -> dict[str, int]:
    return {"order": 1}


async def place_order_later() -> dict[str, int]:
    return {"order": 1}


def pay(operation: Operation) -> str:
    return operation.call("charge", str, 1)


def event_id(event: dict[str, Any]) -> str:
    return str(event["id"])


@once(scope="queue", key=event_id, ttl=60)
def ship(event: dict[str, Any]) -> int:
    return len(event)


@once(scope="queue", key=event_id, lease=timedelta(minutes=1))  # the caller does not pass the operation
def charge(event: dict[str, Any], *, operation: Operation) -> int:
    return operation.call("charge", len, event)


async def the_types_are_kept(event: dict[str, Any]) -> None:
    result = run_once(place_order, scope="queue", key="1", payload=event, ttl=60, using="default")
    assert_type(result, Result[dict[str, int]])
    assert_type(result.value, dict[str, int])
    assert_type(result.replayed, bool)
    assert_type(run_once(pay, scope="queue", key="2", lease=60, on_abandoned="hold"), Result[str])
    assert_type(await arun_once(place_order_later, scope="queue", key="3"), Result[dict[str, int]])
    assert_type(await arun_once(place_order, scope="queue", key="4"), Result[dict[str, int]])
    assert_type(ship(event), int)
    assert_type(charge(event), int)
