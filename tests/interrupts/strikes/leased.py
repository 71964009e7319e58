"""Scenarios of leased mode."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from asgiref.sync import async_to_sync
from django.db import transaction
from django.utils import timezone

from django_idempotency import Operation, arun_once, run_once
from django_idempotency.exceptions import OperationInProgress
from tests.interrupts.strikes import books
from tests.interrupts.strikes.atomic import Refused, closed, used
from tests.interrupts.strikes.engine import Run
from tests.interrupts.strikes.scenarios import Problems, Scenario, one_order
from tests.shopapp.models import Order

CHARGES: defaultdict[str, list[str]] = defaultdict(list)
"""What the gateway got: the reference of each charge and its derived key."""
LEASE = 60


def once(work: Callable[..., Any], key: str, **options: Any) -> Any:
    return run_once(work, scope="s", key=key, operation="struck payment", **{"lease": LEASE, **options}).value


def gateway(key: str, derived: str) -> dict[str, str]:
    CHARGES[key].append(derived)
    return {"id": derived}


def charge(operation: Operation, key: str) -> Any:
    return operation.call("charge", gateway, key, operation.derive_key("charge"))


def order(key: str) -> int:
    return int(Order.objects.create(reference=key).pk)


def pay_with(operation: Operation, key: str) -> list[Any]:
    return [charge(operation, key)["id"], operation.write("order", order, key)]


def pay(key: str, **options: Any) -> Any:
    return once(lambda operation: pay_with(operation, key), key, **options)


def pay_nested(key: str) -> Any:
    def nested() -> int:
        with transaction.atomic():
            return order(key)

    def work(operation: Operation) -> Any:
        charge(operation, key)
        return operation.write("order", nested)

    return once(work, key)


def pay_and_fetch(key: str) -> Any:
    def work(operation: Operation) -> Any:
        charge(operation, key)
        operation.write("order", order, key)
        return operation.fetch("rate", lambda: 3)

    return once(work, key)


def pay_and_refer(key: str) -> Any:
    def work(operation: Operation) -> Any:
        charge(operation, key)
        operation.refer_to("order", "1")
        operation.renew()
        return operation.write("order", order, key)

    return once(work, key)


def pay_and_raise(key: str) -> Any:
    def work(operation: Operation) -> Any:
        charge(operation, key)
        operation.write("order", order, key)
        operation.fetch("rate", lambda: 3)
        raise Refused

    return once(work, key)


async def apay(key: str) -> Any:
    async def work(operation: Operation) -> Any:
        await operation.acall("charge", gateway, key, operation.derive_key("charge"))
        return await operation.awrite("order", order, key)

    return (await arun_once(work, scope="s", key=key, operation="struck payment", lease=LEASE)).value


# --- what an earlier attempt has left


def ends(work: Callable[[Operation], Any], key: str) -> None:
    try:
        once(work, key)
    except Refused:
        return
    raise AssertionError("it was to fail")


def charged(key: str) -> None:
    """It charged, and failed before the order."""

    def work(operation: Operation) -> None:
        charge(operation, key)
        raise Refused

    ends(work, key)


def in_doubt(key: str) -> None:
    """The gateway didn't answer."""

    def late(*args: Any) -> None:
        gateway(*args)
        raise Refused

    ends(lambda operation: operation.call("charge", late, key, operation.derive_key("charge")), key)


def as_if_killed(key: str) -> None:
    """What has been released looks as if its worker had died, and its lease had run out."""
    books.change(key, status="in_progress", attention_at=None, last_error=None, locked_until=timezone.now())
    books.lapse(key)


def abandoned(key: str) -> None:
    charged(key)
    as_if_killed(key)


def abandoned_in_doubt(key: str) -> None:
    in_doubt(key)
    as_if_killed(key)


def running(key: str) -> None:
    """Another worker has the lease."""
    charged(key)
    books.change(
        key,
        status="in_progress",
        attention_at=None,
        last_error=None,
        locked_until=timezone.now() + timezone.timedelta(hours=1),
    )


# --- what must be true


def counted(key: str, run: Run) -> Problems:
    yield from books.miscounts(key)
    if run.error is None and (books.orders(key) != 1 or not books.is_done(key)):
        yield f"acknowledged, and there are {books.orders(key)} orders"
    if books.orders(key) > 1:
        yield "there are two orders"


def charges(key: str) -> list[str]:
    """The derived key of each call that the gateway got for this reference."""
    return CHARGES.get(key, [])


def one_charge(key: str) -> Problems:
    """The gateway has charged once. It knows a repeated call by its derived key."""
    if (number := len({*charges(key)})) != 1:
        yield f"there are charges under {number} derived keys"


def one_call(key: str) -> Problems:
    """Nothing has called the gateway again."""
    if (number := len(charges(key))) != 1:
        yield f"the gateway was called {number} times"


def one_order_and_charge(key: str) -> Problems:
    yield from one_order(key)
    yield from books.miscounts(key)
    yield from one_charge(key)
    if (row := books.row(key)) is not None and row.unknown:
        yield f"in the end {row.unknown} steps are unknown"


def leased(act: Callable[[str], Any], **more: Any) -> Scenario:
    return Scenario(**{"act": act, "after": counted, "end": one_order_and_charge, "leased": True, **more})


SCENARIOS = {
    "leased": leased(pay),
    "leased, closed connection": leased(pay, prepare=closed),
    "leased, used connection": leased(pay, prepare=used, only_on=("messages",)),
    "leased, replay": leased(pay, prepare=pay),
    "leased, conflict": leased(pay, prepare=running, let_go=books.lapse, expected=(OperationInProgress,)),
    "leased, waiting": leased(
        lambda key: pay(key, wait=0.02), prepare=running, let_go=books.lapse, expected=(OperationInProgress,)
    ),
    "leased, nested write": leased(pay_nested),
    "leased, fetch": leased(pay_and_fetch),
    "leased, refer and renew": leased(pay_and_refer),
    "leased, a view that raises": leased(pay_and_raise, retry=pay_and_fetch, expected=(Refused,)),
    "leased, resume": leased(pay, prepare=charged),
    "leased, doubt": leased(pay, prepare=in_doubt),
    "leased, abandoned": leased(pay, prepare=abandoned),
    "leased, abandoned in doubt": leased(pay, prepare=abandoned_in_doubt),
    "leased, async": leased(async_to_sync(apay)),
}
