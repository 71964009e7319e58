"""POST /v1/charges: as a payment provider has it, so that the client library of the provider works with it."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from django_idempotency import idempotent
from shop.models import Order
from shop.pause import pause


@csrf_exempt
@require_POST
@idempotent(operation="charge")
def charge(request: HttpRequest) -> HttpResponse:
    order = Order.objects.create(item=f"a charge of {request.POST['amount']}")
    pause(request)
    return JsonResponse({"id": f"ch_{order.pk}", "object": "charge", "amount": int(request.POST["amount"])})
