"""Views that look closely at the transaction they are in."""

from __future__ import annotations

from typing import Any

from django.db import connection, transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path

from django_idempotency import idempotent
from tests.shopapp.models import Order

HOOKS: list[Any] = []


@idempotent
def locks(request: HttpRequest) -> HttpResponse:
    """A server-side cursor that locks rows: impossible WITH HOLD, which Django asks for in autocommit mode."""
    Order.objects.bulk_create([Order(amount=1), Order(amount=2)])
    amounts = sorted(order.amount for order in Order.objects.select_for_update().iterator(chunk_size=1))
    return JsonResponse({"amounts": amounts}, status=201)


@idempotent
def rolls_back(request: HttpRequest) -> HttpResponse:
    """Raw SQL that ends our transaction under Django's feet; what follows must not commit by itself."""
    with connection.cursor() as cursor:
        cursor.execute("ROLLBACK")
    Order.objects.create()
    return HttpResponse("done", status=201)


@idempotent
def states(request: HttpRequest) -> HttpResponse:
    with connection.cursor() as cursor:
        cursor.execute("SHOW transaction_isolation")
        (isolation,) = cursor.fetchone()
    Order.objects.create()
    return JsonResponse({"autocommit": connection.connection.autocommit, "isolation": isolation}, status=201)


@idempotent
def hooks(request: HttpRequest) -> HttpResponse:
    """Whether each hook sees the order from another connection, and a transaction of its own."""

    def hook() -> None:
        HOOKS.append((Order.objects.using("default").count(), connection.in_atomic_block))

    transaction.on_commit(hook)
    with transaction.atomic():
        Order.objects.create()
        transaction.on_commit(hook)
    return HttpResponse("done", status=201)


@idempotent
def sets_rollback(request: HttpRequest) -> HttpResponse:
    Order.objects.create()
    transaction.set_rollback(True)
    return HttpResponse("refused", status=422)


urlpatterns = [path(view.__name__, view) for view in (locks, rolls_back, states, hooks, sets_rollback)]
