"""Payments: a call to the gateway, then a row in the shop's database. Neither happens twice."""

from __future__ import annotations

import json

from django import forms
from django.conf import settings
from django.http import HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from django_idempotency import Operation, get_operation, idempotent
from shop import gateway
from shop.models import Payment
from shop.pause import pause


class PaymentForm(forms.ModelForm):
    amount = forms.IntegerField(min_value=1, max_value=10**9)

    class Meta:
        model = Payment
        fields = ["order", "amount"]


def _pay(request: HttpRequest, url: str) -> JsonResponse:
    operation: Operation = get_operation(request)
    try:
        data = json.loads(request.body)
    except ValueError:
        data = None
    form = PaymentForm(data if isinstance(data, dict) else {})
    if not form.is_valid():
        return JsonResponse(form.errors, status=400)
    order, amount = form.cleaned_data["order"], form.cleaned_data["amount"]
    pause(request)
    key = operation.derive_key("charge")
    charged = operation.call("charge", gateway.charge, amount, f"order {order.pk}", idempotency_key=key, url=url)
    if "refused" in charged:
        return JsonResponse(charged, status=402)
    payment = operation.write("payment", Payment.objects.create, order=order, amount=amount, charge_id=charged["id"])
    return JsonResponse({"id": payment.pk, "charge": payment.charge_id}, status=201)


@csrf_exempt
@require_POST
@idempotent(operation="pay", lease=settings.PAYMENT_LEASE)
def pay(request: HttpRequest) -> JsonResponse:
    """POST /payments/ {"order": 1, "amount": 1000}. The gateway honours keys, so a call in doubt is made again with its key."""
    return _pay(request, settings.GATEWAY_URL)


@csrf_exempt
@require_POST
@idempotent(operation="pay carefully", lease=settings.PAYMENT_LEASE, on_abandoned="hold")
def pay_carefully(request: HttpRequest) -> JsonResponse:
    """The same with a gateway that ignores keys: a call in doubt waits until an operator decides."""
    return _pay(request, settings.OLD_GATEWAY_URL)
