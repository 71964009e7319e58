from __future__ import annotations

import asyncio
import json
import os
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connection
from django.db.models import F
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from rest_framework.views import APIView

from django_idempotency import get_operation, idempotent
from django_idempotency.rest_framework import IdempotencyMixin
from tests.server.three_steps import recover, settle, three_steps
from tests.servers import ANSWER
from tests.shopapp.models import Ledger, Line, Order
from tests.views import acreates, view_class


def pause(request: Any, place: str) -> None:
    """Wait at the place that the request names while the test holds the advisory lock."""
    if request.headers.get("X-Pause") == place:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_lock_shared(20261120), pg_advisory_unlock_shared(20261120)")


def work(request: Any) -> int:
    pause(request, "before the write")
    order = Order.objects.create(reference=str(os.getpid()))
    if request.headers.get("X-Deferred"):
        Line.objects.create(order_id=2**40)
    pause(request, "before COMMIT")
    return order.pk


def create(request: Any) -> HttpResponse:
    return JsonResponse({"id": work(request)}, status=201)


@csrf_exempt
@idempotent
def transfer(request: HttpRequest) -> HttpResponse:
    """Lock two accounts in the order that the request names: two requests with other orders deadlock."""
    source, target = json.loads(request.body)
    for pk, amount in ((source, -1), (target, 1)):
        Order.objects.filter(pk=pk).update(amount=F("amount") + amount)
    Ledger.objects.create(entry=request.headers["Idempotency-Key"])
    return JsonResponse({"moved": 1}, status=201)


@csrf_exempt
@idempotent(lease=3600)
def leased_plain(request: HttpRequest) -> HttpResponse:
    operation = get_operation(request)

    def charge() -> str:
        Ledger.objects.create(entry=f"charge {operation.derive_key('charge')} {operation.attempt}")
        pause(request, "in the call")
        return operation.derive_key("charge")

    charged = operation.call("charge", charge)
    return JsonResponse({"id": operation.write("order", work, request), "charge": charged}, status=201)


def read(request: HttpRequest) -> HttpResponse:
    return JsonResponse({"orders": Order.objects.count(), "atomic": connection.in_atomic_block})


@csrf_exempt
@idempotent
async def asynchronous(request: HttpRequest) -> HttpResponse:
    order = await Order.objects.acreate(reference=str(os.getpid()))
    await sync_to_async(pause)(request, "before COMMIT")
    if request.headers.get("X-Forever"):
        await asyncio.Event().wait()
    return JsonResponse({"id": order.pk}, status=201)


async def hang(request: HttpRequest, place: str) -> None:
    """At the place that the request names, for ever, or a call until the ledger says that the called service answers.

    Every request that gets here leaves a trace.
    """
    if request.headers.get("X-Hang") == place:
        await Ledger.objects.acreate(entry=f"{place} {os.getpid()} {id(request)}")
        while place != "call" or not await Ledger.objects.filter(entry=ANSWER).aexists():
            await asyncio.sleep(0.05)


@csrf_exempt
@idempotent(lease=3600)
async def leased_async(request: HttpRequest) -> HttpResponse:
    operation = get_operation(request)

    async def charge() -> str:
        await Ledger.objects.acreate(entry=f"charge {operation.derive_key('charge')} {operation.attempt}")
        await hang(request, "call")
        return operation.derive_key("charge")

    async def place_order() -> int:
        order = await Order.objects.acreate(reference="order")
        await hang(request, "write")
        return order.pk

    charged = await operation.acall("charge", charge)
    placed = await operation.awrite("order", place_order)
    return JsonResponse({"id": placed, "charge": charged, "attempt": operation.attempt}, status=201)


async def ping(request: HttpRequest) -> HttpResponse:
    """Answers from the event loop, without a thread or a database."""
    return HttpResponse("pong")


LEASE = float(os.environ.get("SERVER_LEASE", "0.5"))
"""Seconds: what the tests have to wait for after a crash. A busy machine may need more for one request: where no worker
dies, and each takeover would be one too many, `SERVER_LEASE` is longer."""

urlpatterns = [
    path("retry", csrf_exempt(idempotent(lease=LEASE)(three_steps))),
    path("hold", csrf_exempt(idempotent(lease=LEASE, on_abandoned="hold")(three_steps))),
    # The recovery would settle the key of a living worker, too, and a call could come after that.
    path(
        "settled",
        csrf_exempt(
            idempotent(operation="POST settled", lease=20 * LEASE, on_abandoned="hold", reconcile=settle)(three_steps)
        ),
    ),
    path("recover", recover),
    path("async", asynchronous),
    path("async/leased", leased_async),
    path("async/wait", csrf_exempt(idempotent(wait=20)(acreates(reference="waited")))),
    path("async/ping", ping),
    path("leased", leased_plain),
    path("plain", csrf_exempt(idempotent(create))),
    path("transfer", transfer),
    path("rest", view_class(IdempotencyMixin, APIView, post=create).as_view()),
    path("read", read),
]
