"""Protected views that many tests send requests to. What one module is about stands in that module."""

from __future__ import annotations

from django.contrib.auth.decorators import login_required
from django.db import transaction
from django.http import HttpRequest, HttpResponse

from django_idempotency import idempotent
from tests.shopapp.models import Line, Order
from tests.views import creates, paths


def as_asked(request: HttpRequest, order: Order) -> HttpResponse:
    """With the status that the request names."""
    return HttpResponse(f"{Order.objects.count()} orders", status=int(request.GET["status"]))


def fails(request: HttpRequest, order: Order) -> HttpResponse:
    raise ValueError("the view fails")


def fails_after_commit(request: HttpRequest, order: Order) -> HttpResponse:
    transaction.on_commit(lambda: [][0])
    return HttpResponse("ok")


def fails_at_commit(request: HttpRequest, order: Order) -> HttpResponse:
    Line.objects.create(order_id=2**40)
    return HttpResponse("ok", status=201)


create = idempotent(creates())
may_replay = idempotent(may_replay=lambda request: request.headers.get("X-Denied") is None)
urlpatterns = paths(
    create=create,
    answer=idempotent(creates(then=as_asked)),
    fail=idempotent(creates(then=fails)),
    fail_after_commit=idempotent(creates(then=fails_after_commit)),
    fail_at_commit=idempotent(creates(then=fails_at_commit)),
    elsewhere=idempotent(using="other")(creates(using="other")),
    mine=login_required(may_replay(creates())),
)
