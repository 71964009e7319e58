"""Scenarios of views, in each mode: atomic, leased, observed, and without protection."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

from asgiref.sync import async_to_sync
from django.contrib.auth.models import AnonymousUser
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.test import RequestFactory

from django_idempotency import get_operation, idempotent
from tests.interrupts.strikes import books, leased
from tests.interrupts.strikes.atomic import HOOKS, atomic, order, place
from tests.interrupts.strikes.engine import Run
from tests.interrupts.strikes.scenarios import Problems, Scenario, one_order
from tests.shopapp.models import Order

OFF = {"IDEMPOTENCY": {"ENABLED": False}}
KEY = "Idempotency-Key"
View = Callable[[HttpRequest], Any]


def request(key: str, view: Any = None) -> HttpRequest:
    made = RequestFactory().post("/x", b"{}", content_type="application/json", headers={KEY: key})
    made.user = AnonymousUser()
    made.resolver_match = SimpleNamespace(func=view)  # type: ignore[assignment]
    return made


def sent_to(view: View) -> Callable[[str], HttpResponse]:
    """What sends a request to the view, with this key."""
    return lambda key: view(request(key, view))


def named(operation: str, **options: Any) -> Callable[[Any], Any]:
    return idempotent(operation=operation, scope=lambda request: "s", **options)


# --- what the views do


def answering(content: Any = b"ok", status: int = 201) -> View:
    def view(request: HttpRequest) -> HttpResponse:
        order(request.headers[KEY])
        return HttpResponse(content, status=status)

    return view


def paying(request: HttpRequest) -> HttpResponse:
    return JsonResponse(leased.pay_with(get_operation(request), request.headers[KEY]), status=201, safe=False)


async def aordering(request: HttpRequest) -> HttpResponse:
    created = await Order.objects.acreate(reference=request.headers[KEY])
    return JsonResponse({"id": created.pk}, status=201)


async def apaying(request: HttpRequest) -> HttpResponse:
    operation, key = get_operation(request), request.headers[KEY]
    await operation.acall("charge", leased.gateway, key, operation.derive_key("charge"))
    return JsonResponse({"id": await operation.awrite("order", leased.order, key)}, status=201)


def protected(content: Any = b"ok", status: int = 201, **options: Any) -> Callable[[str], HttpResponse]:
    return sent_to(named("view", **options)(answering(content, status)))


def rest_view() -> Callable[[str], Any]:
    """A view of the REST framework, if that is installed."""
    from rest_framework.response import Response
    from rest_framework.views import APIView

    from django_idempotency.rest_framework import IdempotencyMixin

    class Orders(IdempotencyMixin, APIView):
        authentication_classes: list[Any] = []

        def post(self, request: Any) -> Any:
            return Response({"id": order(request.headers[KEY])}, status=201)

    return sent_to(Orders.as_view())


def ninja_operation(work: Callable[[Any], Any], name: str, **options: Any) -> Callable[[str], Any]:
    """An operation of Django Ninja, if that is installed."""
    from ninja import NinjaAPI

    from django_idempotency.ninja import idempotent_operation

    api = NinjaAPI(urls_namespace=name, docs_url=None, openapi_url=None)

    @api.post("/x")
    @idempotent_operation(operation=name, scope=lambda request: "s", **options)
    def operation(request: HttpRequest) -> Any:
        return work(request)

    (callback,) = (pattern.callback for pattern in api.urls[0] if getattr(pattern.pattern, "_route", "") == "x")
    return sent_to(callback)


# --- what must be true


def answered_500(key: str, run: Run) -> Problems:
    if books.orders(key) or books.row(key) is not None:
        yield f"a 500 left {books.orders(key)} orders and the key {books.row(key)}"


def answered_429(key: str, run: Run) -> Problems:
    if books.row(key) is not None:
        yield f"a 429 left the key {books.row(key)}"
    if run.error is None and books.orders(key) != 1:
        yield "acknowledged, and the write of the 429 is lost"


def order_again(key: str) -> Problems:
    """The first request may have committed its order, and so does the retry."""
    if books.orders(key) not in (1, 2):
        yield f"in the end there are {books.orders(key)} orders"


def unprotected(key: str, run: Run) -> Problems:
    """What was acknowledged is there, and nothing of it twice; without protection, a retry runs again."""
    yield from books.miscounts(key)
    number = books.orders(key)
    if run.error is None and number != 1:
        yield f"acknowledged, and there are {number} orders"
    if number > 1:
        yield f"there are {number} orders"
    if key in HOOKS and not number:
        yield "a callback of on_commit ran, and nothing was committed"


def no_key(key: str, run: Run) -> Problems:
    yield from unprotected(key, run)
    if books.row(key) is not None:
        yield f"while off, the key {books.row(key)} is stored"


def observed_again(key: str, run: Run) -> Problems:
    """It is the second request, which runs once more."""
    yield from books.miscounts(key)
    number = books.orders(key)
    if number not in ((2,) if run.error is None else (1, 2)):
        yield f"{'acknowledged' if run.error is None else 'struck'}, and there are {number} orders"


def orders_again(key: str) -> Problems:
    """Two or three requests, of which the last one was acknowledged."""
    if books.orders(key) not in (2, 3):
        yield f"in the end there are {books.orders(key)} orders"


def off(act: Callable[[str], Any], **more: Any) -> Scenario:
    return Scenario(**{"act": act, "after": no_key, "end": order_again, "settings": OFF, **more})


def observed(act: Callable[[str], Any], **more: Any) -> Scenario:
    return Scenario(**{"act": act, "after": unprotected, "end": order_again, **more})


def again(act: Callable[[str], Any], **more: Any) -> Scenario:
    return observed(act, prepare=act, after=observed_again, end=orders_again, **more)


def get(view: Any) -> Callable[[str], Any]:
    """A request of a method that isn't protected."""

    def act(key: str) -> Any:
        made = request(key, view)
        made.method = "GET"
        return view(made)

    return act


LEASED = {"lease": leased.LEASE}
PAID = named("struck payment", **LEASED)(paying)
ORDERED = named("view")(answering())
SEEN, SEEN_PAID = (
    named("seen", observe=True)(answering()),
    named("seen payment", observe=True, **LEASED)(paying),
)
ASKED_SEEN = named("seen", observe=True)(aordering)
ASKED, ASKED_PAID = named("view")(aordering), named("struck payment", **LEASED)(apaying)
SCENARIOS = {
    "view": atomic(protected()),
    "view, large response": atomic(protected(b"x" * 100_000)),
    "view, 500": Scenario(act=protected(status=500), after=answered_500, retry=protected(), end=one_order),
    "view, 429": Scenario(act=protected(status=429), after=answered_429, retry=protected(), end=order_again),
    "view, ATOMIC_REQUESTS": atomic(sent_to(ORDERED), atomic_requests=True),
    "view, a method that isn't protected, ATOMIC_REQUESTS": observed(get(ORDERED), atomic_requests=True),
    "async view": atomic(sent_to(async_to_sync(ASKED))),
    "leased view": leased.leased(sent_to(PAID)),
    "leased view, replay": leased.leased(sent_to(PAID), prepare=sent_to(PAID)),
    "leased async view": leased.leased(sent_to(async_to_sync(ASKED_PAID))),
    "observed view": observed(sent_to(SEEN)),
    "observed view, ATOMIC_REQUESTS": observed(sent_to(SEEN), atomic_requests=True),
    "observed view, again": again(sent_to(SEEN)),
    "observed view, 500": observed(sent_to(named("seen", observe=True)(answering(status=500)))),
    "observed leased view": observed(sent_to(SEEN_PAID), leased=True),
    "observed async view": observed(sent_to(async_to_sync(ASKED_SEEN))),
    "off, view": off(sent_to(ORDERED)),
    "off, view, ATOMIC_REQUESTS": off(sent_to(ORDERED), atomic_requests=True),
    "off, leased view": off(sent_to(PAID), leased=True),
    "off, async view": off(sent_to(async_to_sync(ASKED))),
    "off, run_once": off(place),
    "off, inside the caller's atomic()": off(place, inside=True),
    "off, leased run_once": off(leased.pay, leased=True),
}
if find_spec("rest_framework") is not None:
    REST = rest_view()
    SCENARIOS |= {
        "view of the REST framework": atomic(REST),
        "view of the REST framework, replay": atomic(REST, prepare=REST),
        "view of the REST framework, ATOMIC_REQUESTS": atomic(REST, atomic_requests=True),
    }
if find_spec("ninja") is not None:
    NINJA = ninja_operation(lambda request: {"id": order(request.headers[KEY])}, "ninja")
    NINJA_PAID = ninja_operation(
        lambda request: {"id": leased.pay_with(get_operation(request), request.headers[KEY])}, "struck ninja", **LEASED
    )
    SCENARIOS |= {
        "Ninja operation": atomic(NINJA),
        "Ninja operation, replay": atomic(NINJA, prepare=NINJA),
        "leased Ninja operation": leased.leased(NINJA_PAID),
    }
