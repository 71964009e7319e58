"""Views that answer with credentials, run into errors, and read any body."""

from __future__ import annotations

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.urls import include, path

from django_idempotency import get_operation, idempotent
from tests.shopapp.models import Order
from tests.views import creates


@idempotent
def login(request: HttpRequest) -> HttpResponse:
    """What nobody should protect, and somebody will."""
    response = HttpResponse("welcome", headers={"Authorization": "Bearer s3cret-out", "X-Kept": "yes"})
    response.set_cookie("session", "s3cret-cookie")
    response.headers["set-cookie"] = "raw=s3cret-raw"
    return response


@idempotent
def swallow(request: HttpRequest) -> HttpResponse:
    """Read any body, whatever it is called."""
    length = 0
    while chunk := request.read(65_536):
        length += len(chunk)
    return HttpResponse(str(length))


@idempotent(lease=60)
def leased(request: HttpRequest) -> HttpResponse:
    operation = get_operation(request)
    operation.call("charge", str)
    return HttpResponse(str(operation.write("order", Order.objects.create).pk))


create = creates(200)
urlpatterns = [
    path("login", login),
    path("swallow", swallow),
    path("create", idempotent(create)),
    path("leased", leased),
    path("by-scope", idempotent(scope=lambda request: request.headers["X-Scope"])(create)),
    path("quoted'\"%s;--", idempotent(operation="'; DROP TABLE django_idempotency_idempotencykey; --%s")(create)),
    path("observed", idempotent(observe=True)(create)),
    path("status/", include("django_idempotency.urls")),
    path("admin/", admin.site.urls),
]
