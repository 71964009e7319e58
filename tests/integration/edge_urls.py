"""Views for bodies, callers and transactions at the edge of what a project may do."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from threading import Event
from typing import Any

from django.contrib.auth.mixins import LoginRequiredMixin
from django.db import connection, transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path
from django.views import View

from django_idempotency import idempotent
from tests.shopapp.models import Order

STARTED, GO = Event(), Event()


def digest_of(body: bytes) -> HttpResponse:
    Order.objects.create()
    return HttpResponse(hashlib.sha256(body).hexdigest())


@idempotent
def raw(request: HttpRequest) -> HttpResponse:
    return digest_of(request.read())


@idempotent
def by_lines(request: HttpRequest) -> HttpResponse:
    return digest_of(b"".join(request))


@idempotent(fingerprint=lambda request: request.headers["X-Print"].encode())
def by_header(request: HttpRequest) -> HttpResponse:
    return digest_of(request.body)


@idempotent(fingerprint=lambda request: "text")  # type: ignore[arg-type,return-value]
def by_text(request: HttpRequest) -> HttpResponse:
    return digest_of(request.body)


@idempotent(fingerprint=None)
def unchecked(request: HttpRequest) -> HttpResponse:
    return digest_of(request.body)


@idempotent(fingerprint=("amount", "currency"))
def by_amount(request: HttpRequest) -> HttpResponse:
    return digest_of(request.body)


@idempotent(key=lambda request: 7)  # type: ignore[arg-type,return-value]
def numbered(request: HttpRequest) -> HttpResponse:
    return digest_of(request.body)


@idempotent
def raw_cookie(request: HttpRequest) -> HttpResponse:
    """Set a cookie by hand, as code ported from other frameworks does."""
    response = digest_of(b"")
    response.headers["Set-Cookie"] = "secret=1; Path=/"
    return response


@idempotent
def durable(request: HttpRequest) -> HttpResponse:
    Order.objects.create()
    with transaction.atomic(durable=True):
        return digest_of(b"")


@idempotent
def commits(request: HttpRequest) -> HttpResponse:
    Order.objects.create()
    transaction.commit()
    return HttpResponse()


@idempotent
def autocommits(request: HttpRequest) -> HttpResponse:
    Order.objects.create()
    transaction.set_autocommit(True)
    return HttpResponse()


@idempotent
def closes(request: HttpRequest) -> HttpResponse:
    Order.objects.create()
    connection.close()
    return HttpResponse("closed", status=int(request.GET["status"]))


@idempotent
def create(request: HttpRequest) -> HttpResponse:
    return JsonResponse({"id": Order.objects.create().pk}, status=201)


@idempotent
def outer(request: HttpRequest) -> HttpResponse:
    Order.objects.create()
    return create(request)


@idempotent(operation="held", fingerprint=None)
def held(request: HttpRequest) -> HttpResponse:
    """Stop after the write until the test says go on."""
    pk = Order.objects.create().pk
    STARTED.set()
    assert GO.wait(30)
    return JsonResponse({"id": pk}, status=201)


held_waiting = idempotent(wait=30, operation="held", fingerprint=None)(held.__wrapped__)


class Private(LoginRequiredMixin, View):
    @idempotent
    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        Order.objects.create()
        return super().dispatch(request, *args, **kwargs)


def consuming(get_response: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:
    """A middleware that takes the stream away."""

    def middleware(request: HttpRequest) -> Any:
        request.read(1)
        return get_response(request)

    return middleware


urlpatterns = [
    *(
        path(view.__name__, view)
        for view in (
            *(raw, by_lines, by_header, by_text, unchecked, by_amount, numbered, raw_cookie),
            *(durable, commits, autocommits, closes, create, outer, held),
        )
    ),
    path("held_waiting", held_waiting),
]
