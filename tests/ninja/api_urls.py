"""Operations of Django Ninja that the tests of its decorator send requests to."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from threading import Event
from typing import Any

import ninja
from django.contrib.auth.models import AnonymousUser
from django.db import IntegrityError, connection
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.urls import path
from ninja import File, Form, NinjaAPI, Router, Schema, UploadedFile
from ninja.errors import HttpError, ValidationError
from ninja.security import APIKeyHeader, HttpBearer, django_auth

from django_idempotency import Idempotency, get_operation
from django_idempotency.ninja import idempotent_operation
from tests.shopapp.models import Ledger, Order

CALLS: list[Any] = []
Status: Any = getattr(ninja, "Status", lambda *pair: pair)  # new in 1.6, where pairs became deprecated
STARTED, GO = Event(), Event()
api = NinjaAPI(urls_namespace="tests", docs_url=None, openapi_url=None)


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


@api.post("/itself")
@idempotent_operation
def itself(request: HttpRequest) -> HttpResponse:
    return HttpResponse(f"order {Order.objects.create().pk}", status=202)


@api.post("/stream")
@idempotent_operation
def stream(request: HttpRequest) -> StreamingHttpResponse:
    return StreamingHttpResponse(iter([str(Order.objects.create().pk)]))


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


@api.post("/optional")
@idempotent_operation(required=False)
def optional(request: HttpRequest) -> Any:
    return {"id": Order.objects.create().pk, "atomic": connection.in_atomic_block}


@api.put("/put")
@idempotent_operation
def put(request: HttpRequest) -> Any:
    return {"id": Order.objects.create().pk}


@api.api_operation(["GET", "POST"], "/both")
@idempotent_operation
def both(request: HttpRequest) -> Any:
    return {"id": Order.objects.create().pk}


@api.post("/leased", response=OrderOut)
@idempotent_operation(lease=60)
def leased(request: HttpRequest, response: HttpResponse, refuse: bool = False) -> Any:
    """Charge, refuse if told so, write."""
    operation = get_operation(request)
    charge = operation.call("charge", charge_card, operation.derive_key("charge"))
    if refuse:
        raise HttpError(402, "no funds")
    response["X-Charge"] = charge
    return operation.write("order", Order.objects.create, reference=charge)


def charge_card(key: str) -> str:
    CALLS.append(key)
    return f"charge {len(CALLS)}"


@api.post("/held")
@idempotent_operation
def held(request: HttpRequest) -> Any:
    """Stop after the write until the test says go on."""
    pk = Order.objects.create().pk
    STARTED.set()
    assert GO.wait(30)
    return {"id": pk}


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


class Logged(Exception):
    pass


@api.exception_handler(Logged)
def log_and_raise(request: HttpRequest, error: Logged) -> HttpResponse:
    CALLS.append(f"logged {sys.exc_info()[1]!r}")
    raise error


def swallow() -> Exception:
    """Break the transaction, and hide it."""
    with suppress(IntegrityError):
        Order.objects.create(pk=Order.objects.get().pk)
    return HttpError(402, "after a hidden error")


ERRORS = {
    "402": lambda: HttpError(402, "no funds"),
    "401": lambda: HttpError(401, "who?"),
    "423": lambda: HttpError(423, "later"),
    "500": lambda: HttpError(500, "broken"),
    "503": lambda: HttpError(503, "away"),
    "422": lambda: ValidationError([{"msg": "wrong"}]),
    "refused": lambda: Refused("by the shop"),
    "hopeless": Hopeless,
    "logged": Logged,
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


class Machine:
    def __init__(self, pk: int) -> None:
        self.pk = pk


FOUND = {
    "none": None,
    "dict": {"sub": "1"},
    "true": True,
    "anonymous": AnonymousUser(),
    "machine1": Machine(1),
    "machine2": Machine(2),
}


class Token(HttpBearer):
    """What it returns is what `request.auth` becomes."""

    def authenticate(self, request: HttpRequest, token: str) -> Any:
        return {
            "none": None,
            "dict": {"sub": "1"},
            "true": True,
            "anonymous": AnonymousUser(),
            "machine1": Machine(1),
            "machine2": Machine(2),
        }.get(token, token)


class Key(APIKeyHeader):
    param_name = "X-Shop-Key"

    def authenticate(self, request: HttpRequest, key: str | None) -> Any:
        return key


def caller() -> Any:
    def whoami(request: HttpRequest) -> Any:
        return {"id": Order.objects.create().pk, "who": str(request.auth)}  # type: ignore[attr-defined]

    return whoami


for url, auth in {"/token": Token(), "/key": Key(), "/session": django_auth}.items():
    api.post(url, auth=auth, operation_id=url)(idempotent_operation(caller()))
api.post("/scoped", auth=Token(), operation_id="scoped")(idempotent_operation(scope=lambda request: "one")(caller()))


# Asynchronous operations.


@api.post("/async/orders", response={201: list[OrderOut]})
@idempotent_operation
async def acreate(request: HttpRequest, payload: OrderIn, response: HttpResponse) -> Any:
    assert asyncio.get_running_loop().is_running()
    await Order.objects.acreate(**payload.dict())
    response["X-Shop"] = "async"
    return Status(201, Order.objects.all())


@api.post("/async/fail")
@idempotent_operation
async def afail(request: HttpRequest, error: str) -> Any:
    await Order.objects.acreate()
    make_error = ERRORS[error]
    raise make_error()


@api.put("/async/unprotected", response=dict)
@idempotent_operation(methods=("POST",))
async def apass(request: HttpRequest) -> Any:
    return {"id": (await Order.objects.acreate()).pk}


# Routers: their options and the API's.


def maker() -> Any:
    """A function of its own for each route: routing leaves a mark on it."""

    def make(request: HttpRequest) -> Any:
        return {"id": Order.objects.create().pk}

    return make


def routed() -> Router:
    router = Router()
    router.post("/inherits", operation_id="inherits")(maker())
    router.post("/own", operation_id="own")(idempotent_operation(store_body=False)(maker()))
    router.put("/put", operation_id="put_make")(maker())
    router.get("/get", operation_id="get_make")(maker())
    router.add_decorator(idempotent_operation(ttl=60), mode="view")
    return router


decorated = NinjaAPI(urls_namespace="decorated", docs_url=None, openapi_url=None)
decorated.add_decorator(idempotent_operation(Idempotency(ttl=30, wait=1)), mode="view")
decorated.add_router("/router", routed())
decorated.post("/api", operation_id="api")(maker())


urlpatterns = [path("", api.urls), path("decorated/", decorated.urls)]
