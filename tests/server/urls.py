from __future__ import annotations

import asyncio
import os
from typing import Any

import httpx
from asgiref.sync import sync_to_async
from django.db import connection
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from rest_framework.response import Response
from rest_framework.views import APIView

from django_idempotency import get_operation, idempotent
from django_idempotency.rest_framework import IdempotencyMixin
from tests.server.boundaries import boundary
from tests.shopapp.models import Line, Order


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


@csrf_exempt
@idempotent
def plain(request: HttpRequest) -> HttpResponse:
    return JsonResponse({"id": work(request)}, status=201)


class Rest(IdempotencyMixin, APIView):
    def post(self, request: Any) -> Response:
        return Response({"id": work(request)}, status=201)


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


def call_gateway(step: str, reference: str, key: str) -> Any:
    boundary()
    answer = httpx.post(
        f"{os.environ['GATEWAY']}/charges",
        json={"amount": 1, "reference": f"{step} {reference}"},
        headers={"Idempotency-Key": key},
        timeout=30,
    )
    boundary()
    return answer.raise_for_status().json()["id"]


def three_steps(request: HttpRequest) -> HttpResponse:
    """A charge, an order, a mail."""
    operation = get_operation(request)
    reference = request.headers["X-Reference"]
    charge = operation.call("charge", call_gateway, "charge", reference, operation.derive_key("charge"))
    order = operation.write("order", Order.objects.create, reference=reference)
    mail = operation.call("mail", call_gateway, "mail", reference, operation.derive_key("mail"))
    return JsonResponse({"id": order.pk, "charge": charge, "mail": mail}, status=201)


LEASE = 0.5
"""Seconds: what the tests have to wait for after a crash."""

urlpatterns = [
    path("retry", csrf_exempt(idempotent(lease=LEASE)(three_steps))),
    path("hold", csrf_exempt(idempotent(lease=LEASE, on_abandoned="hold")(three_steps))),
    path("async", asynchronous),
    path("plain", plain),
    path("rest", Rest.as_view()),
    path("read", read),
]
