from __future__ import annotations

import json

from django import forms
from django.http import HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from django_idempotency import idempotent
from shop.models import PRINTABLE, Order
from shop.pause import pause


class OrderForm(forms.ModelForm):
    item = forms.RegexField(PRINTABLE, max_length=100)

    class Meta:
        model = Order
        fields = ["item", "quantity"]


def _create(request: HttpRequest) -> JsonResponse:
    try:
        data = json.loads(request.body)
    except ValueError:
        data = None
    form = OrderForm({"quantity": 1, **data} if isinstance(data, dict) else {})
    if not form.is_valid():
        return JsonResponse(form.errors, status=400)
    order = form.save()
    pause(request)
    return JsonResponse({"id": order.pk, "item": order.item, "quantity": order.quantity}, status=201)


@csrf_exempt
@require_POST
@idempotent
def create_order(request: HttpRequest) -> JsonResponse:
    """POST /orders/: creates one order for each key, however often the request is sent."""
    return _create(request)


@csrf_exempt
@require_POST
def create_order_unprotected(request: HttpRequest) -> JsonResponse:
    """POST /unprotected/orders/: the same without protection, so each request creates an order."""
    return _create(request)
