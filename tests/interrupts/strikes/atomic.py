"""Scenarios of atomic mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asgiref.sync import async_to_sync
from django.db import connection, transaction

from django_idempotency import arun_once, run_once
from django_idempotency.engine.protocol.digests import identify
from django_idempotency.exceptions import OperationInProgress
from tests.interrupts.strikes import books
from tests.interrupts.strikes.engine import Run
from tests.interrupts.strikes.scenarios import Problems, Scenario, one_order, order_beside_key
from tests.shopapp.models import Ledger, Line, Order

HOOKS: list[str] = []
"""The keys whose `on_commit` callbacks have run."""


class Refused(Exception):
    """The work's own error."""


def once(work: Callable[..., Any], key: str, **options: Any) -> Any:
    return run_once(work, scope="s", key=key, operation="place", **options).value


def order(key: str) -> int:
    created = Order.objects.create(reference=key)
    transaction.on_commit(lambda: HOOKS.append(key))
    return int(created.pk)


def place(key: str, **options: Any) -> Any:
    return once(lambda: order(key), key, **options)


def committed(key: str, run: Run) -> Problems:
    yield from order_beside_key(key, run)
    if key in HOOKS and not books.orders(key):
        yield "a callback of on_commit ran, and nothing was committed"


# --- the state of the connection


def closed(key: str) -> None:
    connection.close()


def new(key: str) -> None:
    connection.close()
    connection.ensure_connection()


def used(key: str) -> None:
    connection.close()
    place(f"{key}-before")


def planned(key: str) -> None:
    """The connection's statements have their final plans. See Note [Prepared statements]."""
    if planned.raw is not connection.connection:
        for number in range(13):
            place(f"{key}-before-{number}")
        planned.raw = connection.connection


planned.raw = None  # type: ignore[attr-defined]


# --- a first request, its replay, a duplicate


def take_lock(key: str) -> None:
    books.hold(identify(scope="s", operation="place", key=key).scope_hash)


def release_lock(key: str) -> None:
    books.let_go()


def expired(key: str) -> None:
    place(key)
    Order.objects.using(books.OBSERVER).filter(reference=key).delete()
    books.expire(key)


def refused(key: str) -> Any:
    def work() -> None:
        order(key)
        raise Refused

    return once(work, key)


# --- blocks of its own in the work


def nested(key: str) -> Any:
    def work() -> int:
        with transaction.atomic():
            return order(key)

    return once(work, key)


def nested_twice(key: str) -> Any:
    def work() -> int:
        with transaction.atomic(), transaction.atomic(savepoint=False):
            return order(key)

    return once(work, key)


def nested_failure(key: str) -> Any:
    """The work catches the error of an inner block."""

    def work() -> int:
        try:
            with transaction.atomic():
                Ledger.objects.create(entry=f"{key} inner")
                raise Refused
        except Refused:
            return order(key)

    return once(work, key)


def get_or_create(key: str) -> Any:
    return once(lambda: Order.objects.get_or_create(reference=key)[0].pk, key)


def bulk_create(key: str) -> Any:
    def work() -> int:
        return len(Order.objects.bulk_create([Order(reference=key), Order(reference=f"{key} more")]))

    return once(work, key)


def delete(key: str) -> Any:
    def work() -> int:
        other = Order.objects.create(reference=f"{key} other")
        Line.objects.create(order=other)
        other.delete()
        return order(key)

    return once(work, key)


# --- inside the caller's transaction


def all_or_nothing(key: str, run: Run) -> Problems:
    """Django rolls back the caller's writes, too, when its block ends, if ours could not be rolled back alone."""
    number, outer, done = books.orders(key), books.orders(f"{key} outer"), books.is_done(key)
    if number != done or number > outer:
        yield f"{number} orders, {outer} of the caller, and the key is {'completed' if done else 'not completed'}"
    if run.struck_by is None and number != 1:
        yield f"acknowledged, and there are {number} orders"


async def aplace(key: str) -> int:
    async def work() -> int:
        return int((await Order.objects.acreate(reference=key)).pk)

    return (await arun_once(work, scope="s", key=key, operation="place")).value


def atomic(act: Callable[[str], Any], **more: Any) -> Scenario:
    return Scenario(**{"act": act, "after": committed, "end": one_order, **more})


SCENARIOS = {
    "first request": atomic(place),
    "first request, closed connection": atomic(place, prepare=closed),
    "first request, new connection": atomic(place, prepare=new, only_on=("postgresql",)),
    "first request, used connection": atomic(place, prepare=used, only_on=("postgresql",)),
    "first request, planned statements": atomic(place, prepare=planned, only_on=("messages",)),
    "replay": atomic(place, prepare=place),
    "conflict": atomic(
        place, prepare=take_lock, let_go=release_lock, expected=(OperationInProgress,), only_on=("postgresql",)
    ),
    "waiting": atomic(
        lambda key: place(key, wait=0.02),
        prepare=take_lock,
        let_go=release_lock,
        expected=(OperationInProgress,),
        only_on=("postgresql",),
    ),
    "takeover of an expired key": atomic(place, prepare=expired),
    "a view that raises": atomic(refused, expected=(Refused,), retry=place),
    "nested atomic()": atomic(nested),
    "nested atomic() twice": atomic(nested_twice),
    "nested atomic() that fails": atomic(nested_failure),
    "get_or_create": atomic(get_or_create),
    "bulk_create": atomic(bulk_create),
    "delete": atomic(delete),
    "inside the caller's atomic()": atomic(place, inside=True),
    "nested, inside the caller's atomic()": atomic(nested, inside=True),
    "raises, inside the caller's atomic()": atomic(refused, inside=True, expected=(Refused,), retry=place),
    "replay, inside the caller's atomic()": atomic(place, prepare=place, inside=True),
    "takeover, inside the caller's atomic()": atomic(place, prepare=expired, inside=True),
    "swallowed by the caller": atomic(place, after=all_or_nothing, inside=True, swallows=True),
    "nested, swallowed by the caller": atomic(nested, after=all_or_nothing, inside=True, swallows=True),
    "async run_once": atomic(async_to_sync(aplace)),
}
