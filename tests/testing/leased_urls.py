"""Leased views for `crash_at_each_step`: some survive each crash, others are broken on purpose."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path

from django_idempotency import Result, get_operation, idempotent, run_once
from tests.shopapp.models import Order

LEASE = timedelta(minutes=2)
COUNTER = itertools.count()
MADE: list[str] = []
"""The books of the other side: the key of each charge, as often as it was made."""


def charge(key: str = "") -> dict[str, str]:
    MADE.append(key)
    return {"id": f"ch_{key}"}


def order_of(operation: Any, charged: dict[str, str]) -> HttpResponse:
    order = operation.write("order", Order.objects.create, reference=charged["id"])
    return JsonResponse({"order": order.pk, "charge": charged["id"]}, status=201)


def pay(request: HttpRequest) -> HttpResponse:
    operation = get_operation(request)
    return order_of(operation, operation.call("charge", charge, operation.derive_key("charge")))


async def apay(request: HttpRequest) -> HttpResponse:
    operation = get_operation(request)

    key = operation.derive_key("charge")  # before the call, so that it can be made again
    operation.derive_key("mail")

    async def acharge() -> dict[str, str]:
        return charge(key)

    charged = await operation.acall("charge", acharge)
    await operation.acall("mail", lambda: acharge())
    order = await operation.awrite("order", Order.objects.acreate, reference=charged["id"])
    return JsonResponse({"order": order.pk, "charge": charged["id"]}, status=201)


def pay_without_derived_key(request: HttpRequest) -> HttpResponse:
    operation = get_operation(request)
    return order_of(operation, operation.call("charge", charge))


class Charge:
    def __call__(self) -> dict[str, str]:
        return charge()


CALLABLES: list[Callable[[], Any]] = [Charge, lambda: partial(Charge()), lambda: lambda: charge(), lambda: charge]
"""Each makes what an attempt calls: an object, partial functions, and functions."""


@idempotent(lease=LEASE, on_abandoned="retry")
def calls(request: HttpRequest) -> HttpResponse:
    operation = get_operation(request)
    return order_of(operation, operation.call("charge", CALLABLES[int(request.GET["with"])]()))


def found(operation: Any) -> None:
    """What `reconcile` does: records the charge that the books show."""
    if "charge" in operation.in_doubt and MADE:
        operation.call("charge", lambda: {"id": f"ch_{MADE[-1]}"})


def answer(operation: Any) -> HttpResponse | None:
    """Ends the operation itself, once the order is there."""
    done = Order.objects.filter(reference=f"ch_{operation.derive_key('charge')}").first()
    return None if done is None else JsonResponse({"order": done.pk, "charge": done.reference}, status=201)


leased = idempotent(lease=LEASE)(pay)
asynchronous = idempotent(lease=LEASE)(apay)
no_derived_key = idempotent(lease=LEASE, on_abandoned="retry")(pay_without_derived_key)
held = idempotent(lease=LEASE, on_abandoned="hold")(pay_without_derived_key)
looks_up = idempotent(lease=LEASE, on_abandoned="hold", reconcile=found, operation="POST looks_up")(
    pay_without_derived_key
)
answers = idempotent(lease=LEASE, reconcile=answer, operation="POST answers")(pay)
named = idempotent(lease=LEASE, operation="named by hand")(pay)
atomic = idempotent(lambda request: JsonResponse({"id": Order.objects.create().pk}))


@idempotent(lease=LEASE)
def writes_outside(request: HttpRequest) -> HttpResponse:
    """The order is no step."""
    operation = get_operation(request)
    operation.call("charge", charge, operation.derive_key("charge"))
    return JsonResponse({"order": Order.objects.create().pk})


@idempotent(lease=LEASE)
def writes_at_last(request: HttpRequest) -> HttpResponse:
    """The order is written when a step ends, or when the step is stopped."""
    operation = get_operation(request)
    try:
        operation.call("charge", charge, operation.derive_key("charge"))
    finally:
        if not Order.objects.filter(reference=operation.key).exists():
            Order.objects.create(reference=operation.key)
    return JsonResponse({})


def plain(request: HttpRequest) -> HttpResponse:
    """Not protected at all."""
    return HttpResponse()


@idempotent(lease=LEASE)
def renames_steps(request: HttpRequest) -> HttpResponse:
    operation = get_operation(request)
    operation.call(f"charge {next(COUNTER)}", charge)
    return JsonResponse({})


def swallows_everything(request: HttpRequest) -> HttpResponse:
    """Code around the protected view answers whatever happens."""
    try:
        return leased(request)
    except BaseException:
        return JsonResponse({})


@idempotent(lease=LEASE)
def fails_later(request: HttpRequest) -> HttpResponse:
    """Expects to be the first attempt."""
    operation = get_operation(request)
    operation.write("order", Order.objects.create)
    if operation.attempt > 1 and "raise" in request.GET:
        raise LookupError("no cart")
    return JsonResponse({"first": True} if operation.attempt == 1 else {"again": True})


@idempotent(lease=LEASE)
def takes_once(request: HttpRequest) -> HttpResponse:
    """Takes the same body only once."""
    if Order.objects.filter(reference="once").exists():
        return HttpResponse(status=400)
    get_operation(request).write("order", Order.objects.create, reference="once")
    return HttpResponse(status=201)


@idempotent(lease=LEASE)
def differs(request: HttpRequest) -> HttpResponse:
    """Takes other steps with each request."""
    for number in range(2 - next(COUNTER)):
        get_operation(request).write(f"order {number}", Order.objects.create)
    return HttpResponse()


def _place(operation: Any) -> dict[str, Any]:
    charged = operation.call("charge", charge, operation.derive_key("charge"))
    return {"order": operation.write("order", Order.objects.create, reference=charged["id"]).pk}


def once(request: HttpRequest) -> HttpResponse:
    """`run_once` inside of an unprotected view, which marks its responses."""
    key = request.headers.get("Idempotency-Key", "").strip('"')
    if not key:
        return HttpResponse(status=400)
    result: Result[Any] = run_once(_place, scope="shop", key=key, payload=request.POST.dict(), lease=LEASE)
    return JsonResponse(result.value, headers={"Idempotency-Replayed": str(result.replayed).lower()})


VIEWS = [name for name, value in list(globals().items()) if callable(value) and name.islower()]
urlpatterns = [path(name, globals()[name]) for name in VIEWS]
