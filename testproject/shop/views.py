from __future__ import annotations

import json

from django.http import HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from django_idempotency import idempotent
from shop.models import Order
from shop.pause import pause


def _create(request: HttpRequest) -> JsonResponse:
    data = json.loads(request.body)
    order = Order.objects.create(item=data["item"], quantity=data.get("quantity", 1))
    pause(request)
    return JsonResponse({"id": order.pk, "item": order.item, "quantity": order.quantity}, status=201)


@csrf_exempt
@require_POST
@idempotent
def create_order(request: HttpRequest) -> JsonResponse:
    """POST /orders/: however often it is sent with one key, there is one order."""
    return _create(request)


@csrf_exempt
@require_POST
def create_order_unprotected(request: HttpRequest) -> JsonResponse:
    """The same without protection: an order for each request."""
    return _create(request)
