"""Endpoints that keep the promise, and endpoints that are broken on purpose, each in its own way."""

from __future__ import annotations

import hmac
import itertools
import json
from collections import defaultdict
from collections.abc import Callable
from datetime import timedelta
from threading import current_thread, main_thread
from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.test import Client
from django.urls import include, path

from django_idempotency import get_operation, idempotent
from tests.factories import UserFactory
from tests.shopapp.models import Ledger, Order
from tests.views import acreates

DATA = {"reference": "a book", "amount": 1}
"""What the tests send."""
COUNTER = itertools.count()
KEPT: dict[str, bytes] = {}
HOOKS: defaultdict[str, Callable[[], Any]] = defaultdict(lambda: lambda: None)
"""What the test runs inside a view: a rendezvous of requests that are sent at once."""


def logged_in() -> Client:
    client = Client()
    client.force_login(UserFactory())
    return client


def order(request: HttpRequest) -> HttpResponse:
    created = Order.objects.create(reference=request.POST.get("reference", ""), amount=request.POST.get("amount", 0))
    return JsonResponse({"id": created.pk}, status=201)


# --- good ones


@idempotent
def capture(request: HttpRequest, pk: int) -> HttpResponse:
    """Works once for each order, whatever the key."""
    if Ledger.objects.filter(entry=pk).exists():
        return HttpResponse("captured already", status=400)
    return JsonResponse({"id": Ledger.objects.create(entry=pk).pk}, status=201)


good = idempotent(order)
members = login_required(idempotent(order))
optional = idempotent(required=False)(order)
secret = idempotent(store_body=False)(order)
asynchronous = idempotent(acreates())
dated = idempotent(late_keys="refuse")(order)
by_field = idempotent(key=lambda request: request.POST.get("event"))(order)
by_header = idempotent(key=lambda request: request.headers.get("X-Event"))(order)


@idempotent(using="other")
def elsewhere(request: HttpRequest) -> HttpResponse:
    return JsonResponse({"id": Order.objects.using("other").create().pk}, status=201)


@idempotent
def raw(request: HttpRequest) -> HttpResponse:
    Order.objects.create()
    return HttpResponse(request.body)


@idempotent
def upload(request: HttpRequest) -> HttpResponse:
    Order.objects.create()
    return JsonResponse({name: [f.name, f.content_type, f.size] for name, f in request.FILES.items()})


@idempotent
def unique(request: HttpRequest) -> HttpResponse:
    """Takes the same body only once, whatever the key."""
    if Ledger.objects.filter(entry=request.POST["entry"]).exists():
        return HttpResponse("there already", status=400)
    return JsonResponse({"id": Ledger.objects.create(entry=request.POST["entry"]).pk}, status=201)


@idempotent
def visitor(request: HttpRequest) -> HttpResponse:
    """Starts a session: a retry of a lost answer does not carry its cookie."""
    request.session["orders"] = 1
    return order(request)


SECRET = b"shared with the sender"


def event_id(request: HttpRequest) -> str | None:
    try:
        return str(json.loads(request.body)["id"])
    except ValueError:
        return None


def by_event(request: HttpRequest) -> HttpResponse:
    """Checks the signature of time and body first."""
    mac = hmac.new(SECRET, b"1700000000." + request.body, "sha256").hexdigest()
    if request.headers.get("Stripe-Signature") != f"t=1700000000,v1={mac}":
        return HttpResponse(status=401)
    return idempotent(key=event_id, operation="event")(order)(request)


def in_steps(request: HttpRequest) -> HttpResponse:
    HOOKS["inside"]()
    created = get_operation(request).write("order", Order.objects.create)
    return JsonResponse({"id": created.pk}, status=201)


leased = idempotent(lease=timedelta(minutes=2))(in_steps)
pollable = idempotent(lease=timedelta(minutes=2), in_progress_status=202)(in_steps)


# --- broken ones

unprotected = order
anything_goes = idempotent(fingerprint=None)(order)
changing = idempotent(fingerprint=lambda request: str(next(COUNTER)).encode())(order)
everybody = idempotent(scope=lambda request: "all")(order)
everybodys_mismatch = idempotent(
    scope=lambda request: "all", fingerprint=lambda request: str(request.user.pk).encode() + request.body
)(order)
constant = idempotent(record=lambda response: False)(lambda request: HttpResponse("done"))
never_kept = idempotent(record=lambda response: False)(order)
by_body = idempotent(operation="by body", scope=lambda request: request.POST["reference"])(order)


def gone(request: HttpRequest) -> HttpResponse:
    response = idempotent(order)(request)
    HOOKS["inside"]()
    return response


def picky(request: HttpRequest) -> HttpResponse:
    """Validates before the protected view is asked."""
    return HttpResponse("refused", status=400) if request.POST.get("reference") == "refused" else good(request)


@idempotent
def creates_nothing(request: HttpRequest) -> HttpResponse:
    return JsonResponse({"id": 1}, status=201)


def marks_only(request: HttpRequest) -> HttpResponse:
    """Says that it replays, and runs again."""
    key = request.headers.get("Idempotency-Key")
    if key is None:
        return HttpResponse("no key", status=400)
    response = order(request)
    response["Idempotency-Replayed"] = "true" if key in KEPT else "false"
    KEPT.setdefault(key, response.content)
    return response


def check_then_act(request: HttpRequest) -> HttpResponse:
    """The usual one that people write: look for the key, work, then keep the answer."""
    key = request.headers.get("Idempotency-Key")
    if key is None:
        return HttpResponse("no key", status=400)
    kept = Ledger.objects.filter(entry__startswith=f"{key} ").order_by("pk").first()
    HOOKS["between"]()
    replayed = kept is not None
    if kept is None:
        kept = Ledger.objects.create(entry=f"{key} {Order.objects.create().pk}")
    body = {"id": int(kept.entry.split()[1]) if "X-Same-Body" not in request.headers else 0}
    replayed = replayed or ("X-Says-Replay" in request.headers and current_thread() is not main_thread())
    return JsonResponse(body, status=201, headers={"Idempotency-Replayed": str(replayed).lower()})


def works_anyway(request: HttpRequest) -> HttpResponse:
    """Does something for each duplicate, outside of what is protected."""
    response = good(request)
    if response["Idempotency-Replayed"] == "true" or response.status_code == 409:
        HOOKS["for a duplicate"]()
    return response


def works_without_a_key(request: HttpRequest) -> HttpResponse:
    """Refuses too late."""
    if "Idempotency-Key" not in request.headers:
        order(request)
    return good(request)


def sent_away(request: HttpRequest) -> HttpResponse:
    """Sends everybody away who is not alone."""
    status = HOOKS["between"]()
    return HttpResponse(status=status) if status else good(request)


VIEWS = [name for name, value in list(globals().items()) if callable(value) and name.islower() and name != "logged_in"]
urlpatterns = [path("capture/<int:pk>", capture), path("status/", include("django_idempotency.urls"))]
urlpatterns += (path(name, globals()[name]) for name in VIEWS)
