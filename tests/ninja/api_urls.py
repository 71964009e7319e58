"""Operations of Django Ninja that the tests of its decorator send requests to."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import ninja
from django.contrib.auth.models import AnonymousUser
from django.db import IntegrityError
from django.http import HttpRequest, HttpResponse
from django.urls import path
from ninja import File, Form, NinjaAPI, Schema, UploadedFile
from ninja.errors import HttpError, ValidationError
from ninja.security import APIKeyHeader, HttpBearer, django_auth

from django_idempotency.ninja import idempotent_operation
from tests.shopapp.models import Ledger, Order

CALLS: list[Any] = []
Status: Any = getattr(ninja, "Status", lambda *pair: pair)  # new in 1.6, where pairs became deprecated
api = NinjaAPI(urls_namespace="tests", docs_url=None, openapi_url=None)


def maker() -> Any:
    """A function of its own for each route: routing leaves a mark on it."""

    def make(request: HttpRequest) -> Any:
        return {"id": Order.objects.create().pk}

    return make


class OrderIn(Schema):
    reference: str = ""
    amount: int = 0


class OrderOut(Schema):
    id: int
    reference: str
    amount: int


@api.post("/orders", response={201: OrderOut})
@idempotent_operation
def create(request: HttpRequest, payload: OrderIn, response: HttpResponse) -> Any:
    order = Order.objects.create(**payload.dict())
    response["Location"] = f"/orders/{order.pk}"
    return Status(201, order)


@api.post("/plain", response=list[OrderOut])
@idempotent_operation(ttl=3600)
def lazily(request: HttpRequest) -> Any:
    """Its query runs when the result is converted."""
    Order.objects.create()
    return Order.objects.order_by("pk")


@api.post("/empty", response={204: None})
@idempotent_operation
def empty(request: HttpRequest) -> Any:
    Order.objects.create()
    return Status(204, None)


@api.post("/pair", response={202: OrderOut})
@idempotent_operation
def pair(request: HttpRequest) -> Any:
    return 202, Order.objects.create()


@api.post("/form")
@idempotent_operation
def form(request: HttpRequest, amount: Form[int], image: File[UploadedFile]) -> Any:
    return {"id": Order.objects.create(amount=amount).pk, "size": image.size}


@api.post("/mismatched", response=OrderOut)
@idempotent_operation
def mismatched(request: HttpRequest) -> Any:
    """Its result does not fit its schema."""
    Order.objects.create()
    return {"id": "no number"}


api.post("/observed", operation_id="observed")(idempotent_operation(observe=True)(maker()))
api.put("/put", operation_id="put")(idempotent_operation(maker()))
api.put("/unprotected", operation_id="unprotected")(idempotent_operation(methods=("POST",))(maker()))
api.post("/leased", operation_id="leased")(idempotent_operation(lease=60)(maker()))


# Exceptions.


class Refused(Exception):
    pass


@api.exception_handler(Refused)
def answer_refused(request: HttpRequest, error: Refused) -> HttpResponse:
    CALLS.append("handled")
    Ledger.objects.create(entry=f"audit {len(CALLS)}")
    return api.create_response(request, {"refused": str(error)}, status=402)


class Hopeless(Exception):
    pass


@api.exception_handler(Hopeless)
def answer_hopeless(request: HttpRequest, error: Hopeless) -> HttpResponse:
    """Raise what another handler could answer: Django Ninja asks one handler only."""
    CALLS.append("handled")
    raise Refused("the handler fails") from error


def swallow() -> Exception:
    """Break the transaction, and hide it."""
    with suppress(IntegrityError):
        Order.objects.create(pk=Order.objects.get().pk)
    return HttpError(402, "after a hidden error")


ERRORS = {
    "422": lambda: ValidationError([{"msg": "wrong"}]),
    "refused": lambda: Refused("by the shop"),
    "hopeless": Hopeless,
    "bug": lambda: ZeroDivisionError("bug"),
    "swallow": swallow,
}


@api.post("/fail")
@idempotent_operation
def fail(request: HttpRequest, error: str) -> Any:
    Order.objects.create()
    CALLS.append("run")
    make_error = ERRORS[error]
    raise make_error()


# Callers.


class Token(HttpBearer):
    """What it returns is what `request.auth` becomes."""

    def authenticate(self, request: HttpRequest, token: str) -> Any:
        found = {"dict": {"sub": "1"}, "true": True, "anonymous": AnonymousUser(), "none": None}
        return found.get(token, token)


class Key(APIKeyHeader):
    param_name = "X-Shop-Key"

    def authenticate(self, request: HttpRequest, key: str | None) -> Any:
        return key


api.post("/token", auth=Token(), operation_id="token")(idempotent_operation(maker()))
api.post("/key", auth=Key(), operation_id="key")(idempotent_operation(maker()))
api.post("/text", auth=[django_auth, Token()], operation_id="text")(idempotent_operation(maker()))
one_time = [lambda request: CALLS.pop() if CALLS else None, Key()]
api.post("/one-time", auth=one_time, operation_id="one_time")(idempotent_operation(maker()))
api.post("/two", auth=[django_auth, Token(), Key()], operation_id="two")(idempotent_operation(maker()))


urlpatterns = [path("", api.urls)]
