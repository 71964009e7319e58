"""An API that serves its own schema."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from django.urls import path

from django_idempotency.ninja import idempotent_operation
from django_idempotency.ninja.schema import NinjaAPI

api = NinjaAPI(urls_namespace="schema")


@api.post("/orders")
@idempotent_operation
def create(request: HttpRequest) -> Any: ...


urlpatterns = [path("shop/", api.urls)]
