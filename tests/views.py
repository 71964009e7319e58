"""The views that tests protect. Most create an order, and answer with it; the rest of a test says what is special."""

from __future__ import annotations

from collections.abc import Callable
from inspect import iscoroutinefunction
from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views import View

from tests.shopapp.models import Order

Called = Callable[..., Any]


def answers(content: Any = b"", status: int = 200) -> Called:
    """A view that does nothing but answer."""

    def answer(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        return HttpResponse(content, status=status)

    return answer


def creates(status: int = 201, **fields: Any) -> Called:
    """A view that creates an order with these fields. Its primary key is the answer."""

    def create(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        return JsonResponse({"id": Order.objects.create(**fields).pk}, status=status)

    return create


def acreates(status: int = 201, **fields: Any) -> Called:
    """The same as `async def`."""

    async def create(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        return JsonResponse({"id": (await Order.objects.acreate(**fields)).pk}, status=status)

    return create


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
