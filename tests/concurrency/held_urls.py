"""A view that stops in its middle, under three amounts of patience."""

from __future__ import annotations

from threading import Event

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path

from django_idempotency import idempotent
from tests.shopapp.models import Order
from tests.views import creates

STARTED, GO = Event(), Event()


# One operation under three paths, which differ in their patience only.
@idempotent(operation="held", fingerprint=None)
def held(request: HttpRequest) -> HttpResponse:
    """Stop after the write until the test says go on."""
    pk = Order.objects.create().pk
    STARTED.set()
    assert GO.wait(30)
    return JsonResponse({"id": pk}, status=201)


held_waiting = idempotent(wait=30, operation="held", fingerprint=None)(held.__wrapped__)
held_impatient = idempotent(wait=0.05, operation="held", fingerprint=None)(held.__wrapped__)


def read(request: HttpRequest) -> HttpResponse:
    return JsonResponse({"orders": Order.objects.count()})


urlpatterns = [
    path("create", idempotent(creates())),
    path("read", read),
    path("held", held),
    path("held_waiting", held_waiting),
    path("held_impatient", held_impatient),
]
