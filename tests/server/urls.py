from __future__ import annotations

import asyncio
import os
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connection
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from rest_framework.response import Response
from rest_framework.views import APIView

from django_idempotency import idempotent
from django_idempotency.rest_framework import IdempotencyMixin
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


urlpatterns = [path("async", asynchronous), path("plain", plain), path("rest", Rest.as_view()), path("read", read)]
