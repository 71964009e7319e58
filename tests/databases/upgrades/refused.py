"""What 0.4.0 serves, and this release refuses. `NEWER` in the environment is the project's own change of a view."""

from __future__ import annotations

import os
from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from rest_framework.authentication import BaseAuthentication
from rest_framework.views import APIView

from django_idempotency import get_operation, idempotent
from django_idempotency.rest_framework import IdempotencyMixin
from tests.shopapp.models import Order
from tests.views import view_class


class Failed(Exception):
    """What a header asked for."""


def made(request: Any, name: str = "order") -> int:
    return Order.objects.create(reference=f"{name} {request.headers['Idempotency-Key']}").pk


def fails(request: Any, place: str) -> None:
    if request.headers.get("X-Fail") == place:
        raise Failed(place)


def create(request: Any) -> HttpResponse:
    made(request)
    fails(request, "after the order")
    return JsonResponse({}, status=201)


def stream(request: HttpRequest) -> StreamingHttpResponse:
    create(request)
    return StreamingHttpResponse(iter([b"a", b"b"]), status=201)


def charge(request: HttpRequest) -> int:
    charged = made(request, "charge")
    fails(request, "in the charge")
    return charged


def leased_stream(request: HttpRequest) -> StreamingHttpResponse:
    operation = get_operation(request)
    operation.call("charge", charge, request)
    fails(request, "after the charge")
    operation.write("order", made, request)
    return StreamingHttpResponse(iter([b"a", b"b"]), status=201)


def new_call(request: HttpRequest) -> HttpResponse:
    """In the newer version of the project, a call stands before the charge."""
    operation = get_operation(request)
    if os.environ.get("NEWER") == "before":
        operation.call("check", made, request, "check")
    operation.call("charge", charge, request)
    if os.environ.get("NEWER") == "after":
        operation.call("check", made, request, "check")
    fails(request, "after the charge")
    operation.write("order", made, request)
    return JsonResponse({}, status=201)


async def in_async(request: HttpRequest) -> HttpResponse:
    operation = get_operation(request)
    fails(request, "before the charge")
    operation.call("charge", lambda: request.headers["Idempotency-Key"])
    await Order.objects.acreate(reference=f"order {request.headers['Idempotency-Key']}")
    return JsonResponse({}, status=201)


def two_doubts(request: HttpRequest) -> HttpResponse:
    operation = get_operation(request)
    try:
        operation.call("charge", charge, request)
    except Failed:
        operation.call("fee", charge, request)
    raise RuntimeError("Bug: the header let it through.")


def forgetful(operation: Any) -> HttpResponse:
    """A `reconcile` that knows the charge, and says nothing about the fee."""
    operation.call("charge", lambda: "ch_1")
    return JsonResponse({}, status=201)


class Stateless:
    """A user who is in no table."""

    is_authenticated, is_anonymous, is_active = True, False, True

    def __init__(self, pk: str) -> None:
        self.pk = pk


def by(pk: str) -> type[BaseAuthentication]:
    """Authentication that checks a JWT, and hands on neither the token nor its claims."""
    return type("Jwt", (BaseAuthentication,), {"authenticate": lambda self, request: (Stateless(pk), None)})


def rest(pk: str) -> Any:
    return view_class(IdempotencyMixin, APIView, authentication_classes=[by(pk)], post=create).as_view()


def protected(view: Any, **options: Any) -> Any:
    return csrf_exempt(idempotent(**options)(view))


urlpatterns: list[Any] = [
    path("stream", protected(stream)),
    path("leased-stream", protected(leased_stream, lease=3600)),
    path("new-call", protected(new_call, lease=3600)),
    path("in-async", protected(in_async, lease=3600)),
    path("two-doubts", protected(two_doubts, operation="two", lease=3600, on_abandoned="hold", reconcile=forgetful)),
    path("stranger", rest("17")),
    path("nobody", rest("")),
]
