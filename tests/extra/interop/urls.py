from __future__ import annotations

from uuid import uuid4

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt

from django_idempotency import idempotent
from tests.extra.interop.faults import until_a_repeat_is_answered
from tests.shopapp.models import Order


def create_order(request: HttpRequest) -> HttpResponse:
    """The bytes of the answer differ each time that this runs."""
    order = Order.objects.create(reference=request.headers["Idempotency-Key"])
    until_a_repeat_is_answered(request)
    return JsonResponse({"id": order.pk, "run": str(uuid4())}, status=201)


def read(request: HttpRequest) -> HttpResponse:
    return HttpResponse("up")


urlpatterns = [
    path("protected", csrf_exempt(idempotent(create_order))),
    path("unprotected", csrf_exempt(create_order)),
    path("read", read),
]
