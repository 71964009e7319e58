"""Payments: a call to the gateway, then a row of our own. Neither happens twice."""

from __future__ import annotations

import json

from django.conf import settings
from django.http import HttpRequest, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from django_idempotency import Operation, get_operation, idempotent
from shop import gateway
from shop.models import Order, Payment


def _pay(request: HttpRequest, url: str) -> JsonResponse:
    operation: Operation = get_operation(request)
    data = json.loads(request.body)
    order = get_object_or_404(Order, pk=data["order"])
    key = operation.derive_key("charge")
    charged = operation.call(
        "charge", gateway.charge, data["amount"], f"order {order.pk}", idempotency_key=key, url=url
    )
    if "refused" in charged:
        return JsonResponse(charged, status=402)
    payment = operation.write(
        "payment", Payment.objects.create, order=order, amount=data["amount"], charge_id=charged["id"]
    )
    return JsonResponse({"id": payment.pk, "charge": payment.charge_id}, status=201)


@csrf_exempt
@require_POST
@idempotent(lease=settings.PAYMENT_LEASE)
def pay(request: HttpRequest) -> JsonResponse:
    """POST /payments/ {"order": 1, "amount": 1000}. The gateway honours keys, so a call in doubt is made again."""
    return _pay(request, settings.GATEWAY_URL)


@csrf_exempt
@require_POST
@idempotent(lease=settings.PAYMENT_LEASE, on_abandoned="hold")
def pay_carefully(request: HttpRequest) -> JsonResponse:
    """The same with a gateway that knows no keys: a call in doubt waits for a person."""
    return _pay(request, settings.OLD_GATEWAY_URL)
