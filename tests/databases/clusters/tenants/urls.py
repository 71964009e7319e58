from __future__ import annotations

from django.contrib.auth.models import AnonymousUser, User
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from django_tenants.utils import schema_context

from django_idempotency import idempotent
from tests.shopapp.models import Order


@csrf_exempt
def order(request: HttpRequest) -> HttpResponse:
    """The first user of the tenant, who has the same primary key in each schema."""
    request.user = User.objects.first() or AnonymousUser()
    return _create_order(request)


@idempotent
def _create_order(request: HttpRequest) -> HttpResponse:
    created = Order.objects.create(reference=request.tenant.schema_name)  # type: ignore[attr-defined]
    if visited := request.headers.get("X-Visit"):
        with schema_context(visited):
            Order.objects.exists()
    return JsonResponse({"id": created.pk, "tenant": created.reference}, status=201)


def read(request: HttpRequest) -> HttpResponse:
    """The server is up."""
    return HttpResponse()


urlpatterns = [path("orders/", order), path("read", read)]
