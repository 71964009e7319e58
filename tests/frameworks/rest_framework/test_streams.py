"""Streaming responses under the REST framework."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("rest_framework")

from django.http import StreamingHttpResponse
from django.urls import path
from rest_framework.views import APIView

from django_idempotency import IdempotencyConfigurationError
from django_idempotency.models import IdempotencyKey
from django_idempotency.rest_framework import IdempotencyMixin
from tests.shopapp.models import Order

pytestmark = [pytest.mark.django_db, pytest.mark.urls(__name__)]


class Streaming(IdempotencyMixin, APIView):
    def post(self, request: Any) -> Any:
        Order.objects.create()
        return StreamingHttpResponse(iter([b"chunk"]))


urlpatterns = [path("stream", Streaming.as_view())]


def test_a_handler_that_streams_is_refused(post: Callable[..., Any]) -> None:
    """What it has written is rolled back, and a retry may run."""
    with pytest.raises(IdempotencyConfigurationError, match="pass store_body=False"):
        post("/stream")
    assert (Order.objects.count(), IdempotencyKey.objects.count()) == (0, 0)
