"""The views that tests protect, made by a few factories.

Most create an order, and answer with its primary key: `creates()`. `then=` says what such a view does instead of that,
`answers()` makes a view that does nothing else, `charges()` a leased one, and `view_class()` a class-based view of any
of these. `paths()` gives them URLs. Only a view that is itself what a test is about is written out, beside that test.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import iscoroutinefunction
from typing import Any

from django.db import OperationalError
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path
from django.views import View

from django_idempotency import get_operation
from tests.shopapp.models import Order

Called = Callable[..., Any]


def answers(content: Any = b"", status: int = 200) -> Called:
    """A view that does nothing but answer."""

    def answer(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        return HttpResponse(content, status=status)

    return answer


def creates(status: int = 201, then: Called | None = None, *, using: str | None = None, **fields: Any) -> Called:
    """A view that creates an order with these fields, on this database or where the routers say.

    Its primary key is the answer, or else what `then(request, order)` returns or raises.
    """

    def create(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        order = Order.objects.using(using).create(**fields)
        return then(request, order) if then else JsonResponse({"id": order.pk}, status=status)

    return create


def acreates(status: int = 201, **fields: Any) -> Called:
    """The same as `async def`."""

    async def create(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        return JsonResponse({"id": (await Order.objects.acreate(**fields)).pk}, status=status)

    return create


def charges(charge: Called, *, keyed: bool = True) -> Called:
    """A leased view: one call of `charge`, which gets its derived key if it is keyed, and then one order."""

    def pay(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        operation = get_operation(request)
        charged = operation.call("charge", charge, *([operation.derive_key("charge")] if keyed else []))
        order = operation.write("order", Order.objects.create, reference=charged["id"])
        return JsonResponse({"order": order.pk, "charge": charged["id"], "attempt": operation.attempt}, status=201)

    return pay


class Retrying:
    """Sends the request again if the database ended the transaction, as it does in a deadlock: once."""

    def dispatch(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        for again in (True, False):
            try:
                return super().dispatch(request, again)  # type: ignore[misc]
            except OperationalError:
                assert again
        raise AssertionError("it fails once")


def paths(*views: Called, **named: Called) -> list[Any]:
    """A URL for each view, under its own name or that of the keyword."""
    return [path(name, view) for name, view in [*((view.__name__, view) for view in views), *named.items()]]


def view_class(*bases: type, **attributes: Any) -> Any:
    """A class-based view. Functions of a request that are called `get`, `post` and so on become its handlers."""
    for verb in View.http_method_names:
        if verb in attributes:
            attributes[verb] = _handler(verb, attributes[verb])
    return type("Orders", bases or (View,), attributes)


def _handler(verb: str, view: Called) -> Called:
    if iscoroutinefunction(view):

        async def handle(self: Any, *args: Any, **kwargs: Any) -> Any:
            return await view(*args, **kwargs)

    else:

        def handle(self: Any, *args: Any, **kwargs: Any) -> Any:
            return view(*args, **kwargs)

    handle.__name__ = verb
    handle.__qualname__ = f"Orders.{verb}"
    return handle
