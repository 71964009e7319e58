"""Views for bodies, callers and transactions at the edge of what a project may do."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from django.db import connection, transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path

from django_idempotency import idempotent
from tests.shopapp.models import Order


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


def consuming(get_response: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:
    """A middleware that takes the stream away."""

    def middleware(request: HttpRequest) -> Any:
        request.read(1)
        return get_response(request)

    return middleware


urlpatterns = [
    path(view.__name__, view)
    for view in (
        *(raw, by_lines, by_header, by_text, unchecked, by_amount, numbered, raw_cookie),
        *(durable, commits, autocommits, closes, create, outer),
    )
]
