"""Endpoints that keep the promise, and what several tests share with them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from datetime import timedelta
from threading import current_thread, main_thread
from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.test import Client

from django_idempotency import get_operation, idempotent
from tests.factories import UserFactory
from tests.shopapp.models import Ledger, Order
from tests.views import acreates, paths

DATA = {"reference": "a book", "amount": 1}
"""What the tests send."""
HOOKS: defaultdict[str, Callable[[], Any]] = defaultdict(lambda: lambda: None)
"""What the test runs inside a view: a rendezvous of requests that are sent at once."""


def logged_in() -> Client:
    client = Client()
    client.force_login(UserFactory())
    return client


def order(request: HttpRequest) -> HttpResponse:
    created = Order.objects.create(reference=request.POST.get("reference", ""), amount=request.POST.get("amount", 0))
    return JsonResponse({"id": created.pk}, status=201)


@idempotent
def unique(request: HttpRequest) -> HttpResponse:
    """Takes the same body only once, whatever the key."""
    if Ledger.objects.filter(entry=request.POST["entry"]).exists():
        return HttpResponse("there already", status=400)
    return JsonResponse({"id": Ledger.objects.create(entry=request.POST["entry"]).pk}, status=201)


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


def in_steps(request: HttpRequest) -> HttpResponse:
    HOOKS["inside"]()
    created = get_operation(request).write("order", Order.objects.create)
    return JsonResponse({"id": created.pk}, status=201)


good = idempotent(order)
urlpatterns = paths(
    unique,
    check_then_act,
    good=good,
    members=login_required(good),
    optional=idempotent(required=False)(order),
    asynchronous=idempotent(acreates()),
    by_header=idempotent(key=lambda request: request.headers.get("X-Event"))(order),
    leased=idempotent(lease=timedelta(minutes=2))(in_steps),
)
